//! The handshake: its steps, their commands, and what their answers mean.

use super::{Effect, Node, is_forbidden};
use crate::moment::Moment;
use crate::outcome::{NodeOutcome, ServerErrorKind, Unfit};
use crate::proto::command::{Command, Credentials, Reply, Section, ServerError, ServerInfo, Trial};
use crate::proto::request::{HandshakeStep, Question};

/// What servers say to a password if they have none.
const HAS_NO_PASSWORD: [&str; 2] = ["without any password", "no password is set"];
/// The steps that every connection takes, in order.
const COMMON: [HandshakeStep; 7] = [
    HandshakeStep::SetName,
    HandshakeStep::ClientId,
    HandshakeStep::Info(Section::Server),
    HandshakeStep::Info(Section::Replication),
    HandshakeStep::Info(Section::Memory),
    HandshakeStep::Info(Section::Persistence),
    // After the role: at this time the server certainly was what it says.
    HandshakeStep::Time,
];

/// Why a server has refused the number of a database.
const NO_SUCH_DATABASE: &str =
    "the server has fewer databases than the address needs (databases in redis.conf, usually 16)";

impl Node {
    /// The steps of a handshake with this node.
    pub(crate) fn steps(&self) -> impl Iterator<Item = HandshakeStep> + use<> {
        let (settings, asks) = (self.guard.settings(), self.guard.asks_for_sighting());
        let first = self.credentials.is_some().then_some(HandshakeStep::Authenticate);
        let second = (settings.db != 0).then_some(HandshakeStep::Select);
        let sighting = asks.then_some(HandshakeStep::Sighting);
        first.into_iter().chain(second).chain(COMMON).chain(sighting).chain([HandshakeStep::Probe])
    }

    pub(crate) fn question_command(&self, question: Question) -> Command<'_> {
        match question {
            Question::Handshake(step) => self.step_command(step),
            Question::Time => Command::Time,
            Question::Role => Command::Info(Section::Replication),
            Question::Probe(with) => Command::Probe { key: self.config.probe_key.as_bytes(), with },
            Question::Sight => self.guard.sight_command(),
        }
    }

    fn step_command(&self, step: HandshakeStep) -> Command<'_> {
        match step {
            HandshakeStep::Authenticate => Command::Authenticate(Credentials {
                user: self.credentials.as_ref().and_then(|it| it.user.as_deref()),
                password: self.password().unwrap_or_default(),
            }),
            HandshakeStep::Select => Command::Select { db: self.guard.settings().db },
            HandshakeStep::SetName => Command::SetName(self.config.client_name.as_bytes()),
            HandshakeStep::ClientId => Command::ClientId,
            HandshakeStep::Info(section) => Command::Info(section),
            HandshakeStep::Time => Command::Time,
            HandshakeStep::Sighting => {
                Command::Sighting { key: self.config.sighting_key.as_bytes() }
            }
            HandshakeStep::Probe => Command::Try {
                key: self.config.probe_key.as_bytes(),
                trial: if self.config.notices_flushes() { Trial::Marked } else { Trial::Plain },
            },
        }
    }

    pub(super) fn handle_handshake_reply(
        &mut self,
        now: Moment,
        step: HandshakeStep,
        sent_at: Moment,
        reply: Reply,
    ) -> Effect {
        self.link.note_heard();
        match (step, reply) {
            (HandshakeStep::Time, Reply::Error(error)) if denies_service(error.kind) => {
                return self.handle_handshake_error(step, error);
            }
            (HandshakeStep::Time, reply) => {
                if let Reply::Time(time) = reply {
                    self.guard.sightings.note_time(time);
                }
                return self.handle_time(now, sent_at, reply);
            }
            (_, Reply::Error(error)) => return self.handle_handshake_error(step, error),
            (
                HandshakeStep::Authenticate | HandshakeStep::Select | HandshakeStep::SetName,
                Reply::Ok,
            ) => {}
            (HandshakeStep::ClientId, Reply::Integer(id)) => {
                self.guard.identity.client_id = Some(id)
            }
            (HandshakeStep::Info(_), Reply::Info(info)) => self.guard.identity.server.add(*info),
            (HandshakeStep::Info(Section::Replication), Reply::Replication(reported)) => {
                self.guard.identity.server.replication = reported;
            }
            (
                HandshakeStep::Sighting,
                // Another one's text may look like anything.
                reply @ (Reply::Nil
                | Reply::Sighting(_)
                | Reply::Info(_)
                | Reply::Replication(_)
                | Reply::Owned(_)),
            ) => self.guard.sightings.note_stored(reply),
            (HandshakeStep::Probe, Reply::Integer(0)) => return Effect::HandshakeDone,
            (HandshakeStep::Probe, Reply::Missing(command)) => {
                self.guard.identity.missing = Some(command);
                return Effect::HandshakeDone;
            }
            _ => return Effect::UNEXPECTED,
        }
        Effect::Nothing
    }

    fn handle_handshake_error(&mut self, step: HandshakeStep, mut error: ServerError) -> Effect {
        let kind = error.kind;
        // The probe's key prefix may be outside the user's permissions; errors of the locks' own
        // keys will show that. The server's message names the command, and maybe the user, or what
        // may not be accessed.
        let is_foreign_key =
            kind == ServerErrorKind::Permission && error.message.contains(" access ");
        if step == HandshakeStep::Authenticate {
            // The code is enough, and the rest may contain the password in another form.
            let code = error.message.split(' ').next().unwrap_or_default();
            let own = match HAS_NO_PASSWORD.iter().any(|text| error.message.contains(text)) {
                true => Some("the server has no password; leave it out"),
                false if code == "WRONGPASS" => {
                    Some("WRONGPASS: the user or the password is wrong")
                }
                false => None,
            };
            error.message = own.unwrap_or(code).into();
            match own {
                // It has no secret. A password such as "wrong" would be masked in it.
                Some(_) => self.errors.keep(error, None),
                None => self.keep_error(error),
            }
        } else {
            if step == HandshakeStep::Select && error.message.contains("DB index") {
                error.message = format!("{}: {NO_SUCH_DATABASE}", error.message).into();
            }
            self.keep_error(error);
        }
        match step {
            // Name and id are optional, and some servers have neither.
            HandshakeStep::SetName | HandshakeStep::ClientId if !denies_service(kind) => {
                Effect::Nothing
            }
            // Without it, the client waits for the whole time.
            HandshakeStep::Sighting if !denies_service(kind) => {
                self.note_sighting_refused();
                Effect::Nothing
            }
            // What the server does not report cannot be relied on.
            HandshakeStep::Info(_) if is_forbidden(kind) => {
                let version = self.guard.identity.server.version.take();
                self.guard.identity.server = ServerInfo { version, ..ServerInfo::default() };
                Effect::Nothing
            }
            HandshakeStep::Probe => {
                self.guard.identity.runs_no_scripts = is_forbidden(kind) && !is_foreign_key;
                // A replica and a loading server refuse the script as well.
                Effect::Fail(match kind {
                    ServerErrorKind::ReadOnly => NodeOutcome::Unfit(Unfit::Replica),
                    ServerErrorKind::Loading => NodeOutcome::Unfit(Unfit::Loading),
                    ServerErrorKind::Cluster => NodeOutcome::Unfit(Unfit::Cluster),
                    kind if is_forbidden(kind) => return Effect::HandshakeDone,
                    kind => NodeOutcome::Server(kind),
                })
            }
            _ => Effect::Fail(NodeOutcome::Server(kind)),
        }
    }
}

fn denies_service(kind: ServerErrorKind) -> bool {
    matches!(kind, ServerErrorKind::Auth | ServerErrorKind::MaxClients)
}
