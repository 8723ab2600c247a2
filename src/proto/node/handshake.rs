//! The handshake: its steps, their commands, and what their answers mean.

use super::{Effect, Node, is_forbidden};
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, ServerErrorKind, Unfit};
use crate::proto::command::{
    Command, Credentials, ReleaseWith, Reply, Section, ServerError, ServerInfo,
};

/// A step of the handshake. All of them are sent at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Authenticate,
    Select,
    SetName,
    ClientId,
    Info(Section),
    Time,
    /// The last step: when it is answered, all are.
    Probe,
}

/// The steps that every connection takes, in order.
const COMMON: [Step; 8] = [
    Step::SetName,
    Step::ClientId,
    Step::Info(Section::Server),
    Step::Info(Section::Replication),
    Step::Info(Section::Memory),
    Step::Info(Section::Persistence),
    Step::Time,
    Step::Probe,
];

impl Node {
    /// The steps of a handshake with this node.
    pub(in crate::proto) fn steps(&self) -> impl Iterator<Item = Step> + use<> {
        let first = self.settings().password.is_some().then_some(Step::Authenticate);
        let second = (self.settings().db != 0).then_some(Step::Select);
        first.into_iter().chain(second).chain(COMMON)
    }

    pub(in crate::proto) fn step_command(&self, step: Step) -> Command<'_> {
        match step {
            Step::Authenticate => Command::Authenticate(Credentials {
                user: self.settings().user.as_deref(),
                password: self.settings().password.as_deref().unwrap_or_default(),
            }),
            Step::Select => Command::Select { db: self.settings().db },
            Step::SetName => Command::SetName,
            Step::ClientId => Command::ClientId,
            Step::Info(section) => Command::Info(section),
            Step::Time => Command::Time,
            Step::Probe => self.probe_command(ReleaseWith::Script),
        }
    }

    pub(in crate::proto) fn probe_command(&self, with: ReleaseWith) -> Command<'_> {
        Command::Probe { key: self.config.probe_key.as_bytes(), with }
    }

    pub(super) fn handle_greeting(
        &mut self,
        now: Moment,
        step: Step,
        sent_at: Moment,
        reply: Reply,
    ) -> Effect {
        self.link.note_heard();
        match (step, reply) {
            (Step::Time, Reply::Error(error)) if denies_service(error.kind) => {
                return self.handle_greeting_refused(step, error);
            }
            (Step::Time, reply) => return self.handle_time(now, sent_at, reply),
            (_, Reply::Error(error)) => return self.handle_greeting_refused(step, error),
            (Step::Authenticate | Step::Select | Step::SetName, Reply::Ok) => {}
            (Step::ClientId, Reply::Integer(id)) => self.identity.client_id = Some(id),
            (Step::Info(_), Reply::Info(info)) => self.identity.server.add(*info),
            (Step::Info(Section::Replication), Reply::Replication(said)) => {
                self.identity.server.replication = said;
            }
            (Step::Probe, Reply::Integer(0)) => return Effect::Greeted,
            _ => return Effect::UNEXPECTED,
        }
        Effect::Nothing
    }

    fn handle_greeting_refused(&mut self, step: Step, mut error: ServerError) -> Effect {
        let kind = error.kind;
        // The probe's key prefix may be outside the user's permissions; errors of the locks' own
        // keys will show that. The server's message names the command, and maybe the user, or what
        // may not be accessed.
        let is_foreign_key =
            kind == ServerErrorKind::Permission && error.message.contains(" access ");
        if step == Step::Authenticate {
            let has_none = ["without any password", "no password is set"];
            // The code is enough, and the rest may contain the password in another form.
            let code = error.message.split(' ').next().unwrap_or_default();
            error.message = match has_none.iter().any(|text| error.message.contains(text)) {
                true => "the server has no password; leave it out".into(),
                false if code == "WRONGPASS" => {
                    "WRONGPASS: the user or the password is wrong".into()
                }
                false => code.into(),
            };
        }
        self.keep_error(error);
        match step {
            // Name and id are optional, and some servers have neither.
            Step::SetName | Step::ClientId if !denies_service(kind) => Effect::Nothing,
            // What the server does not report cannot be relied on.
            Step::Info(_) if is_forbidden(kind) => {
                let version = self.identity.server.version.take();
                self.identity.server = ServerInfo { version, ..ServerInfo::default() };
                Effect::Nothing
            }
            Step::Probe => {
                self.identity.runs_no_scripts = is_forbidden(kind) && !is_foreign_key;
                // A replica and a loading server refuse the script as well.
                let reason = match kind {
                    ServerErrorKind::ReadOnly => Some(Unfit::Replica),
                    ServerErrorKind::Loading => Some(Unfit::Loading),
                    ServerErrorKind::Cluster => Some(Unfit::Cluster),
                    _ => None,
                };
                match reason {
                    Some(reason) => Effect::Fail(NodeOutcome::Unfit(reason)),
                    None if is_forbidden(kind) => Effect::Greeted,
                    None => Effect::Fail(NodeOutcome::Server(kind)),
                }
            }
            _ => Effect::Fail(NodeOutcome::Server(kind)),
        }
    }
}

fn denies_service(kind: ServerErrorKind) -> bool {
    matches!(kind, ServerErrorKind::Auth | ServerErrorKind::MaxClients)
}
