//! The clients that are connected to the masters, and the settings that they must have alike.

use std::collections::{BTreeMap, BTreeSet};

use muxlock::Config;
use muxlock::unstable_tool::{ConfigExt, MARKED};

use super::ask::{Obstacle, Said, Seen, Seens};
use super::finding::Severity::Warning;
use super::finding::{Finding, Id};
use crate::holder::{Client, Tag};

/// Most clients that are named.
const CLIENTS_SHOWN_MAX: usize = 8;
/// The position of the addresses in a mark, and that of the databases.
const ADDRESSES: usize = 0;
const DATABASE: usize = 1;

type Answers = [Result<Said, Obstacle>];

/// The masters that have listed their clients.
fn listed<'a>(answers: &'a Answers) -> Vec<(usize, &'a Seens)> {
    let seens = |said: &'a Result<Said, Obstacle>| said.as_ref().ok()?.clients.as_ref().ok();
    answers.iter().enumerate().filter_map(|(node, said)| Some((node, seens(said)?))).collect()
}

/// Each client, and the masters to which it is not connected.
fn by_client<'a>(listed: &[(usize, &'a Seens)]) -> BTreeMap<Tag, (&'a Seen, Vec<usize>)> {
    let mut all = BTreeMap::new();
    for (tag, seen) in listed.iter().flat_map(|(_, seens)| *seens) {
        let is_without = |(_, seens): &&(usize, &Seens)| !seens.contains_key(tag);
        let without = || listed.iter().filter(is_without).map(|(node, _)| *node).collect();
        all.entry(*tag).or_insert_with(|| (seen, without()));
    }
    all
}

/// The digits of a mark for one setting.
fn digits(mark: &str, at: usize) -> Option<&str> {
    mark.get(2 * at..2 * at + 2)
}

/// Whether a client certainly has the same list of masters.
fn has_same_list(config: &Config, client: &Client) -> bool {
    let mark = client.mark.as_deref().and_then(|mark| digits(mark, ADDRESSES));
    mark.is_some() && mark == digits(config.common().mark, ADDRESSES)
}

/// Whether the masters have to be asked again: a client that has come or gone meanwhile looks like
/// one with another list.
pub fn is_doubtful(config: &Config, answers: &Answers) -> bool {
    let is_partial = |(seen, without): &(&Seen, Vec<usize>)| {
        !without.is_empty() && !has_same_list(config, &seen.client)
    };
    by_client(&listed(answers)).values().any(is_partial)
}

/// Adds the clients of a second look, and forgets those that only one of both has shown.
pub fn settle(answers: &mut Answers, again: Vec<Option<Seens>>) {
    let tags = |looks: &mut dyn Iterator<Item = &Seens>| -> BTreeSet<Tag> {
        looks.flat_map(|seens| seens.keys().copied()).collect()
    };
    let first = tags(&mut listed(answers).into_iter().map(|(_, seens)| seens));
    let second = tags(&mut again.iter().flatten());
    for (said, again) in answers.iter_mut().zip(again) {
        if let Ok(Said { clients: Ok(clients), .. }) = said {
            again.into_iter().flatten().for_each(|(tag, seen)| {
                clients.entry(tag).or_insert(seen);
            });
            clients.retain(|tag, _| first.contains(tag) && second.contains(tag));
        }
    }
}

/// A client that is connected to some masters only may have another list than the rest.
pub fn lists(config: &Config, answers: &Answers) -> Vec<Finding> {
    let clients = by_client(&listed(answers));
    let others = clients
        .into_values()
        .filter(|(seen, without)| !without.is_empty() && !has_same_list(config, &seen.client));
    let finding = |(seen, without): (&Seen, Vec<usize>)| {
        let without: Vec<_> = without.into_iter().map(|node| config.master(node).address).collect();
        let why = format!(
            "the client {} is connected to other masters, and not to {}: all clients must list the \
             same masters",
            seen.client,
            without.join(", ")
        );
        Finding::new(Warning, Id::ListsDiffer, why)
    };
    others.take(CLIENTS_SHOWN_MAX).map(finding).collect()
}

/// Clients whose settings differ from those of this command.
pub fn settings(config: &Config, answers: &Answers) -> Vec<Finding> {
    let listed = listed(answers);
    let own = config.common().mark;
    let mut by_difference: BTreeMap<Vec<&str>, Vec<&Client>> = BTreeMap::new();
    for (tag, (seen, _)) in by_client(&listed) {
        let has_other_db = |(node, seens): &(usize, &Seens)| {
            let db = seens.get(&tag).and_then(|seen| seen.db);
            db.is_some_and(|db| db != config.master(*node).db)
        };
        let mark = seen.client.mark.as_deref();
        let differs = |at: &usize| {
            let is_other_mark = mark.is_some_and(|mark| digits(mark, *at) != digits(own, *at));
            is_other_mark || *at == DATABASE && listed.iter().any(has_other_db)
        };
        let differing: Vec<_> = (0..MARKED.len()).filter(differs).map(|at| MARKED[at]).collect();
        if !differing.is_empty() {
            by_difference.entry(differing).or_default().push(&seen.client);
        }
    }
    let finding = |(differing, clients): (Vec<&str>, Vec<&Client>)| {
        let shown = clients.iter().take(CLIENTS_SHOWN_MAX).map(|client| client.to_string());
        let mut shown: Vec<_> = shown.collect();
        match clients.len().saturating_sub(CLIENTS_SHOWN_MAX) {
            0 => {}
            more => shown.push(format!("{more} more")),
        }
        let why = format!(
            "other settings than this command's ({}): {}; two clients with different ones can hold \
             the same lock",
            differing.join("; "),
            shown.join("; ")
        );
        Finding::new(Warning, Id::SettingsDiffer, why)
    };
    by_difference.into_iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use muxlock::Redlock;

    use super::*;

    fn answer(clients: &[&str]) -> Result<Said, Obstacle> {
        let lines = clients.join("\n");
        Ok(Said { clients: Ok(super::super::ask::clients(&lines)), ..Said::nothing(false) })
    }

    /// One with two addresses is one client, one with the same mark has the same list, and one
    /// that comes or goes between two looks is none.
    #[test]
    fn clients_are_compared_by_tag_and_mark() {
        let urls = ["redis://10.0.0.1", "redis://10.0.0.2"];
        let config = Redlock::builder().nodes(urls).config().unwrap();
        let own = config.common().mark.to_owned();
        let line = |tag: u32, host: u8, mark: &str, db: u32| {
            format!(
                "id=1 addr=10.1.0.{host}:5000 name=muxlock/9:tag={tag:08x}{mark}:pid={tag}:host=web \
                 db={db}"
            )
        };
        let unmarked = |tag, host| line(tag, host, "", 0);
        let homes = [answer(&[&unmarked(1, 8)]), answer(&[&unmarked(1, 9)])];
        assert!(!is_doubtful(&config, &homes) && lists(&config, &homes).is_empty());

        let mut partial = [answer(&[&unmarked(1, 8), &unmarked(2, 8)]), answer(&[&unmarked(3, 8)])];
        assert!(is_doubtful(&config, &partial));
        let look = |clients: &[&str]| answer(clients).ok().and_then(|said| said.clients.ok());
        settle(&mut partial, vec![look(&[&unmarked(1, 8)]), look(&[&unmarked(4, 8)])]);
        let found = lists(&config, &partial);
        assert_eq!(found.len(), 1, "{found:?}");
        let why = &found[0].why;
        assert!(
            why.contains("web pid 1, from 10.1.0.8 ") && why.contains("10.0.0.2:6379"),
            "{why}"
        );

        let marked = |tag, mark: &str, db| line(tag, 8, &format!(":mark={mark}"), db);
        let idle = [answer(&[&marked(1, &own, 0)]), answer(&[])];
        assert!(!is_doubtful(&config, &idle) && lists(&config, &idle).is_empty());
        assert_eq!(settings(&config, &idle), []);
        let prefix = format!("{}00{}", &own[..4], &own[6..]);
        let all = [&marked(1, &prefix, 0), &marked(2, &prefix, 0), &marked(3, &own, 2)];
        let found = settings(&config, &[answer(&all.map(String::as_str)), answer(&[])]);
        let whys: Vec<_> = found.iter().map(|it| &*it.why).collect();
        assert_eq!(whys.len(), 2, "{whys:?}");
        assert!(whys[0].contains("(database): web pid 3, from"), "{whys:?}");
        assert!(whys[1].contains("(prefix): web pid 1, from 10.1.0.8; web pid 2,"), "{whys:?}");
    }
}
