"""The one closed list of reasons behind verdicts and decisions; text is rendered at the edge."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Reason(StrEnum):
    """Why something was decided. Codes are stable: scripts may rely on them."""

    # Refusals of a submission or a request.
    NOT_JSON = "not-json"
    TOO_LARGE = "too-large"
    UNKNOWN_KEY = "unknown-key"
    MISSING_KEY = "missing-key"
    WRONG_TYPE = "wrong-type"
    BAD_VALUE = "bad-value"
    NOT_BUILT = "not-built"
    WRONG_VERSION = "wrong-version"
    UNKNOWN_VC = "unknown-vc"
    WRONG_VC = "wrong-vc"
    UNKNOWN_JOB = "unknown-job"
    ALREADY_ENDED = "already-ended"
    NOT_ENDED = "not-ended"
    OVER_QUOTA = "over-quota"
    QUOTA_TOO_SMALL = "quota-too-small"
    TOO_MANY_JOBS = "too-many-jobs"
    NO_SUCH_GPU_TYPE = "no-such-gpu-type"
    TOO_MANY_GPUS = "too-many-gpus"
    NODE_TOO_SMALL = "node-too-small"
    UNKNOWN_NODE = "unknown-node"
    REPEATED = "repeated"
    TYPE_NOT_OWNED = "type-not-owned"
    CELL_TOO_SMALL = "cell-too-small"
    WITHIN_TOO_SMALL = "within-too-small"
    CELLS_DO_NOT_PACK = "cells-do-not-pack"
    NOT_MIXED = "not-mixed"
    MIXED_OF_ONE = "mixed-of-one"
    MIXED_UNDER_POLICY = "mixed-under-policy"
    PIN_NEEDS_GUARANTEE = "pin-needs-guarantee"
    NO_TIME_ZONE = "no-time-zone"
    UNKNOWN_CLASS = "unknown-class"
    PROFILE_REFUSED = "profile-refused"
    ABOVE_PERSON_LIMIT = "above-person-limit"
    NOTHING_FAILED = "nothing-failed"
    TASKS = "tasks"
    NO_ROLE = "no-role"
    ROLE_TOO_LOW = "role-too-low"
    NOT_ITS_OWNER = "not-its-owner"
    PRIORITY_TOO_HIGH = "priority-too-high"
    AMBIGUOUS_NAME = "ambiguous-name"
    DEPENDENCY_CYCLE = "dependency-cycle"

    # Why notices go nowhere.
    NO_NOTIFIER = "no-notifier"
    UNKNOWN_TARGET = "unknown-target"
    TARGET_NOT_ALLOWED = "target-not-allowed"
    NOT_DELIVERED = "not-delivered"

    # Why a session in a running job was refused, or ended.
    JOB_SUSPENDED = "job-suspended"
    NO_TERMINAL = "no-terminal"
    TAKEN_OVER = "taken-over"
    NOTHING_LISTENS = "nothing-listens"
    CANNOT_EXECUTE = "cannot-execute"
    TOO_MANY_SESSIONS = "too-many-sessions"
    ATTEMPT_OVER = "attempt-over"
    SESSION_LOST = "session-lost"

    # Why a person, a token or a node was refused.
    UNAUTHORIZED = "unauthorized"
    TOKEN_EXPIRED = "token-expired"
    TOKEN_REVOKED = "token-revoked"
    UNKNOWN_PERSON = "unknown-person"
    PERSON_DISABLED = "person-disabled"
    PERSON_EXISTS = "person-exists"
    NAME_RESERVED = "name-reserved"
    NAME_RETIRED = "name-retired"
    TOO_MANY_PEOPLE = "too-many-people"
    TOO_MANY_TOKENS = "too-many-tokens"
    TOO_MANY_ATTEMPTS = "too-many-attempts"
    UNKNOWN_TOKEN = "unknown-token"
    EXPIRY_TOO_LATE = "expiry-too-late"
    LOGIN_REPEATED = "login-repeated"
    LOGIN_OF_ANOTHER = "login-of-another"
    LOGIN_NOT_BOUND = "login-not-bound"
    LOGIN_REFUSED = "login-refused"
    JOIN_TOKEN_USED = "join-token-used"
    WRONG_NAME = "wrong-name"
    WRONG_HOST = "wrong-host"
    KEY_REVOKED = "key-revoked"
    NOT_SIGNED = "not-signed"
    TOO_MANY_KEYS = "too-many-keys"

    # Refusals about secrets.
    NO_SECRET = "no-secret"
    NO_VAULT = "no-vault"
    NOT_BOUND_HERE = "not-bound-here"
    NO_CODE = "no-code"
    CODE_FULL = "code-full"
    NO_OUTPUT = "no-output"
    OUTPUT_CHANGED = "output-changed"
    NO_ENVIRONMENT = "no-environment"
    ENVIRONMENT_IN_USE = "environment-in-use"
    OTHER_VAULT_KEY = "other-vault-key"
    OTHER_PLACE = "other-place"
    TOO_MANY_SECRETS = "too-many-secrets"

    # Refusals about volumes, and about files for a job.
    UNKNOWN_VOLUME = "unknown-volume"
    VOLUME_NOT_ALLOWED = "volume-not-allowed"
    VOLUME_READ_ONLY = "volume-read-only"
    PLACES_OVERLAP = "places-overlap"
    NO_VOLUME = "no-volume"
    NO_MOUNTS = "no-mounts"
    COPY_REFUSED = "copy-refused"

    # What admission answers to a deadline, and why.
    IN_TIME = "in-time"
    DEADLINE_PASSED = "deadline-passed"
    TOO_LITTLE_EVEN_ALONE = "too-little-even-alone"
    CELLS_TOO_SMALL = "cells-too-small"
    BEHIND_PROMISES = "behind-promises"
    LENGTH_UNKNOWN = "length-unknown"
    NOT_PROFILED = "not-profiled"
    KEEPS_NO_PROMISES = "keeps-no-promises"
    BORROWED_GPUS = "borrowed-gpus"
    BUDGET_EXCEEDED = "budget-exceeded"
    PROFILED_TOO_LITTLE = "profiled-too-little"
    PROFILED_ON_ONE_NODE = "profiled-on-one-node"
    AS_MEASURED = "as-measured"

    # What would let a job be on time.
    WITH_MORE_GPUS = "with-more-gpus"
    AT_A_LATER_TIME = "at-a-later-time"

    # Why a promise was broken.
    SLOWER_THAN_PREDICTED = "slower-than-predicted"
    OUTRAN_ITS_LENGTH = "outran-its-length"
    CELLS_CHANGED = "cells-changed"
    STARTED_TOO_LATE = "started-too-late"

    # What is wrong with a cluster file.
    UNKNOWN_CHAIN = "unknown-chain"
    UNKNOWN_LEVEL = "unknown-level"
    UNKNOWN_CELL = "unknown-cell"
    UNKNOWN_CELL_TYPE = "unknown-cell-type"
    UNKNOWN_PIN = "unknown-pin"
    WRONG_FANOUT = "wrong-fanout"
    CELLS_NOT_FULL = "cells-not-full"
    DUPLICATE_NODE = "duplicate-node"
    DUPLICATE_DEVICE = "duplicate-device"
    DUPLICATE_NAME = "duplicate-name"
    DUPLICATE_PIN = "duplicate-pin"
    OVERLAPPING_DEVICES = "overlapping-devices"
    OVERLAPPING_PINS = "overlapping-pins"
    INFEASIBLE = "infeasible"
    WRONG_PLACE = "wrong-place"
    IGNORED_KEY = "ignored-key"

    # Why a job waits.
    WAITS_FOR_GPUS = "waits-for-gpus"
    WAITS_BEHIND = "waits-behind"
    WAITS_FOR_NODES = "waits-for-nodes"
    WAITS_FOR_VICTIMS = "waits-for-victims"
    WAITS_FOR_PORT = "waits-for-port"
    WAITS_FOR_CELLS = "waits-for-cells"
    WAITS_FOR_REPAIR = "waits-for-repair"
    WAITS_FOR_AFFINITY = "waits-for-affinity"
    FITS_NO_CELL = "fits-no-cell"
    PERSON_LIMIT = "person-limit"
    WAITS_FOR_WINDOW = "waits-for-window"
    WAITS_FOR_SHARE = "waits-for-share"
    WAITS_FOR_JOBS = "waits-for-jobs"
    WAITS_FOR_TIME = "waits-for-time"
    WAITS_FOR_PIPELINE = "waits-for-pipeline"
    HELD = "held"

    # Why a running job was not changed, or stands still.
    NOT_RUNNING = "not-running"
    CANNOT = "cannot"
    NOT_TAKEN = "not-taken"
    OVERTAKEN = "overtaken"
    NO_ROOM = "no-room"
    ONE_NODE_ONLY = "one-node-only"
    SIZE_NOT_OFFERED = "size-not-offered"
    REQUESTED = "requested"
    SUSPENDED = "suspended"
    WAITS_FOR_ITS_GPUS = "waits-for-its-gpus"
    HAS_GPUS = "has-gpus"

    # Why a job was not packed with another, or no more.
    NOT_WAITING = "not-waiting"
    PARTNER_NOT_RUNNING = "partner-not-running"
    PARTNER_CHANGING = "partner-changing"
    PARTNER_TOO_SMALL = "partner-too-small"
    PARTNER_SPANS_NODES = "partner-spans-nodes"
    OTHER_GPU_TYPE = "other-gpu-type"
    TIED_ELSEWHERE = "tied-elsewhere"
    HOST_FULL = "host-full"
    NODE_CLOSED = "node-closed"
    GPUS_CROWDED = "gpus-crowded"
    SHARE_TAKEN = "share-taken"
    NOT_PACKED = "not-packed"
    PACKED = "packed"
    UNPACKED = "unpacked"
    ALONE = "alone"
    SHARES_FIT = "shares-fit"

    # Why a job was placed where it was.
    BEST_FIT_ONE_NODE = "best-fit-one-node"
    FEWEST_NODES = "fewest-nodes"
    HOLDS_COPIES = "holds-copies"
    MIXED_GANG = "mixed-gang"
    CELLS_RESERVED = "cells-reserved"

    # Why a job was stopped, put back or ended.
    SUCCEEDED = "succeeded"
    EXITED_NONZERO = "exited-nonzero"
    KILLED_BY_SIGNAL = "killed-by-signal"
    EXIT_UNKNOWN = "exit-unknown"
    NOT_STARTED = "not-started"
    PORT_BUSY = "port-busy"
    NODE_FAULT = "node-fault"
    PEER_FAILED = "peer-failed"
    CANCELLED = "cancelled"
    TIME_LIMIT = "time-limit"
    TIME_LIMIT_NEAR = "time-limit-near"
    CHECKPOINT_DUE = "checkpoint-due"
    IDLE = "idle"
    HUNG = "hung"
    RANK_SLOW = "rank-slow"
    LOADER_SLOW = "loader-slow"
    RANK_HUNG = "rank-hung"
    HELD_UP_GANGS = "held-up-gangs"
    PREEMPTED = "preempted"
    NODE_LOST = "node-lost"
    NODE_STOPPED = "node-stopped"
    ASKED_FOR = "asked-for"
    REPEATED_FAILURES = "repeated-failures"
    DEVICE_TROUBLE = "device-trouble"
    RETRIES_USED_UP = "retries-used-up"
    DEPENDENCY_NEVER_SATISFIED = "dependency-never-satisfied"

    # What the policy of a virtual cluster did, and what was wrong with that.
    HELD_BY_POLICY = "held-by-policy"
    PREEMPTED_BY_POLICY = "preempted-by-policy"
    BY_POLICY = "by-policy"
    TO_OWN_CELLS = "to-own-cells"
    POLICY_FAILED = "policy-failed"
    NOT_ITS_JOB = "not-its-job"
    UNKNOWN_POLICY = "unknown-policy"
    UNKNOWN_TEMPLATE = "unknown-template"
    FIXED_BY_TEMPLATE = "fixed-by-template"
    TEMPLATE_OF_OPERATOR = "template-of-operator"
    TOO_MANY_TEMPLATES = "too-many-templates"
    BAD_OPTION = "bad-option"

    # Why a change was not tried, and what became of one that was.
    TRIAL_OPEN = "trial-open"
    TRIAL_COOLS = "trial-cools"
    TRIALS_ENOUGH = "trials-enough"
    NOT_MEASURED = "not-measured"
    TRIAL_GAINS = "trial-gains"
    TRIAL_LOSES = "trial-loses"
    LATENCY_ABOVE = "latency-above"
    TRIAL_STAYS = "trial-stays"
    TRIAL_DISTURBED = "trial-disturbed"
    NO_VERDICT = "no-verdict"
    PROBING = "probing"
    PROBED = "probed"
    PROBE_BUDGET_USED = "probe-budget-used"

    # Why a policy changes jobs that run, by what was measured of them.
    INTERFERES = "interferes"
    OWN_GPUS = "own-gpus"
    CLOSER = "closer"
    MAKES_WHOLE = "makes-whole"
    GPUS_NEEDED = "gpus-needed"
    NO_PROGRESS = "no-progress"
    GPUS_UNUSED = "gpus-unused"

    # What a search did with its trials, and why it ended.
    UNKNOWN_SEARCH = "unknown-search"
    UNKNOWN_TRIAL = "unknown-trial"
    TOO_MANY_SEARCHES = "too-many-searches"
    SEARCH_ENDS = "search-ends"
    FIRST_FEEDBACK = "first-feedback"
    BEST_PROMISE = "best-promise"
    ITS_TURN = "its-turn"
    PROMOTED = "promoted"
    RUNG_REACHED = "rung-reached"
    NO_PROMISE = "no-promise"
    DEMOTED = "demoted"
    TARGET_REACHED = "target-reached"
    BUDGET_SPENT = "budget-spent"
    ALL_TRIED = "all-tried"
    NOT_HEARD = "not-heard"

    # What a service did with its replicas, and why.
    UNKNOWN_SERVICE = "unknown-service"
    SERVICE_EXISTS = "service-exists"
    TOO_MANY_SERVICES = "too-many-services"
    SERVICE_ENDS = "service-ends"
    NO_REPLICA_READY = "no-replica-ready"
    REPLICA_UNREADY = "replica-unready"
    OTHER_REVISION = "other-revision"
    FEWER_REPLICAS = "fewer-replicas"
    REQUEST_RATE = "request-rate"
    REQUEST_WAITS = "request-waits"
    SERVICE_IDLE = "service-idle"
    LATENCY = "latency"

    # What would start a job that waits.
    WITHOUT_ITS_PIN = "without-its-pin"
    WITHOUT_ITS_AFFINITY = "without-its-affinity"
    WITH_ANOTHER_TYPE = "with-another-type"
    WITHOUT_CPUS = "without-cpus"
    WITH_BORROWED_GPUS = "with-borrowed-gpus"
    AS_OPPORTUNISTIC = "as-opportunistic"
    AS_GUARANTEED = "as-guaranteed"
    WITH_FEWER_GPUS = "with-fewer-gpus"
    WITH_A_PRIORITY = "with-a-priority"
    IN_ANOTHER_VC = "in-another-vc"
    ONCE_OTHERS_END = "once-others-end"

    # Of windows: what is wrong with one, and what one does.
    WINDOW_PAST = "window-past"
    WINDOW_TOO_LONG = "window-too-long"
    WINDOW_TOO_FAR = "window-too-far"
    WINDOWS_OVERLAP = "windows-overlap"
    TOO_MANY_WINDOWS = "too-many-windows"
    NAME_TAKEN = "name-taken"
    UNKNOWN_WINDOW = "unknown-window"
    MAINTENANCE = "maintenance"
    RESERVED_FOR_VC = "reserved-for-vc"

    # What the watch over the cells found broken.
    CELLS_UNSAFE = "cells-unsafe"
    CELLS_MISCOUNTED = "cells-miscounted"
    GPUS_HELD_WRONGLY = "gpus-held-wrongly"

    # How the advisor ordered the queue.
    PREDICTED_SHORTEST = "predicted-shortest"
    ARRIVAL = "arrival"
    LENT_MEANWHILE = "lent-meanwhile"

    # From which model an unknown one borrows its speed.
    SAME_FINGERPRINT = "same-fingerprint"
    SAME_FAMILY = "same-family"
    NEAREST_MODEL = "nearest-model"
    UNKNOWN_MODEL = "unknown-model"

    # How a virtual cluster's policy ordered its jobs, and why it took a job's GPUs or held one.
    SHORTEST_REMAINING = "shortest-remaining"
    LEAST_REMAINING_SERVICE = "least-remaining-service"
    SHORTEST_JOB = "shortest-job"
    SHORTEST_HERE = "shortest-here"
    FEWEST_GPUS = "fewest-gpus"
    SMALLEST_PRODUCT = "smallest-product"
    LEAST_ATTAINED = "least-attained"
    HIGHEST_INDEX = "highest-index"
    LEAST_TIME = "least-time"
    LOWEST_SHARE = "lowest-share"
    FAIR_SHARE = "fair-share"
    BEST_PACKING = "best-packing"
    EARLIEST_COMPLETION = "earliest-completion"
    LOWEST_WEIGHTED_AGE = "lowest-weighted-age"
    MOST_GAIN = "most-gain"
    BEST_RATIO = "best-ratio"
    OUTRANKED = "outranked"
    SLICE_OVER = "slice-over"
    HELD_FOR_LOCALITY = "held-for-locality"
    SHARE_USED_UP = "share-used-up"
    LARGER_THAN_SHARE = "larger-than-share"
    SHORTEST_ALLOWANCE = "shortest-allowance"
    PROMISED = "promised"
    BY_DEADLINE = "by-deadline"
    LATE_ANYWAY = "late-anyway"
    MEASURED_RATE = "measured-rate"
    PREDICTED_SPEED = "predicted-speed"
    EARLIER_RUNS = "earlier-runs"
    OWNER_SAID = "owner-said"

    # Why a VC follows its learned model, or its rule instead.
    ADVISED = "advised"
    HELD_BY_MODEL = "held-by-model"
    NO_ADVICE = "no-advice"
    NO_MODEL = "no-model"
    ADVICE_LATE = "advice-late"
    ADVICE_BROKEN = "advice-broken"
    OTHER_MODEL = "other-model"
    OTHER_SCHEMA = "other-schema"
    BEYOND_TRAINING = "beyond-training"
    MARGIN_TOO_SMALL = "margin-too-small"
    MIXED_PRIORITIES = "mixed-priorities"
    WAITED_TOO_LONG = "waited-too-long"
    STAGE_OFF = "stage-off"
    STAGE_SHADOW = "stage-shadow"
    STAGE_SWITCHBACK = "stage-switchback"
    SHADOW_PASSED = "shadow-passed"
    NOT_WORSE = "not-worse"
    MEASURED_REGRESSION = "measured-regression"
    FAULTS_REPEATED = "faults-repeated"
    COOLED_DOWN = "cooled-down"
    BAD_SPAN = "bad-span"
    REPLAY_RUNS = "replay-runs"
    UNKNOWN_REPLAY = "unknown-replay"
    NOTHING_TO_REPLAY = "nothing-to-replay"
    REPLAY_TOO_LARGE = "replay-too-large"
    REPLAY_FAILED = "replay-failed"


TEXT: dict[Reason, str] = {
    Reason.NOT_JSON: "the message is not a JSON object",
    Reason.TOO_LARGE: "the message is larger than is accepted",
    Reason.UNKNOWN_KEY: "this key is not known",
    Reason.MISSING_KEY: "a required key is missing",
    Reason.WRONG_TYPE: "the value has the wrong type",
    Reason.BAD_VALUE: "the value is out of range",
    Reason.NOT_BUILT: "this is part of the schema but not built yet",
    Reason.WRONG_VERSION: "this version of the schema is not spoken here",
    Reason.NO_SECRET: "there is no such secret, or the job does not name it",
    Reason.NO_VAULT: "this cluster keeps no secrets, or its vault does not answer",
    Reason.NOT_BOUND_HERE: "the job is not bound to this node",
    Reason.NO_CODE: "the virtual cluster has no such snapshot of code, or not all of it",
    Reason.CODE_FULL: "there is no room for more snapshots of code",
    Reason.NO_OUTPUT: "the job's folder has no such file, or is not kept any more",
    Reason.OUTPUT_CHANGED: "the file changed while it was copied",
    Reason.NO_ENVIRONMENT: "the node keeps no such environment",
    Reason.ENVIRONMENT_IN_USE: "the environment is being built, or jobs may run in it",
    Reason.OTHER_VAULT_KEY: "the secret is sealed to another key than the vault's",
    Reason.OTHER_PLACE: "the secret was sealed for another owner or name",
    Reason.TOO_MANY_SECRETS: "the owner has as many secrets as it may",
    Reason.UNKNOWN_VOLUME: "the cluster has no such volume",
    Reason.VOLUME_NOT_ALLOWED: "the virtual cluster may not use this volume",
    Reason.VOLUME_READ_ONLY: "the virtual cluster may read this volume, and not write to it",
    Reason.PLACES_OVERLAP: "two volumes would be at one place, or one in another",
    Reason.NO_VOLUME: "the node does not have the volume, or nothing is mounted there",
    Reason.NO_MOUNTS: "the job's processes on this node see the node's own folders only",
    Reason.COPY_REFUSED: "the file cannot be copied to or from that place",
    Reason.UNKNOWN_VC: "no such virtual cluster",
    Reason.WRONG_VC: "the virtual cluster named is not the one published to",
    Reason.UNKNOWN_JOB: "no such job in this virtual cluster",
    Reason.ALREADY_ENDED: "the job has already ended",
    Reason.NOT_ENDED: "the job has not ended yet",
    Reason.OVER_QUOTA: "the virtual cluster's quota is used up and the job asked not to wait",
    Reason.QUOTA_TOO_SMALL: "the job needs more GPUs than its virtual cluster owns",
    Reason.TOO_MANY_JOBS: "the virtual cluster has as many unfinished jobs as it may have",
    Reason.NO_SUCH_GPU_TYPE: "no node has GPUs of this type",
    Reason.TOO_MANY_GPUS: "the job needs more GPUs than the cluster has",
    Reason.NODE_TOO_SMALL: "no node is large enough for one worker (or for a gang tied to one)",
    Reason.UNKNOWN_NODE: "no such node",
    Reason.TYPE_NOT_OWNED: "the virtual cluster owns no cells with GPUs of this type",
    Reason.CELL_TOO_SMALL: "no cell of the virtual cluster holds one worker",
    Reason.WITHIN_TOO_SMALL: "no cell of that level in the virtual cluster holds the whole gang",
    Reason.CELLS_DO_NOT_PACK: "the workers do not fit the virtual cluster's cells, however placed",
    Reason.NOT_MIXED: "a job as it asks for cannot be mixed",
    Reason.MIXED_OF_ONE: "only one chain of cells has GPUs that it may be mixed of",
    Reason.MIXED_UNDER_POLICY: "the policy of the virtual cluster places no mixed gangs",
    Reason.PIN_NEEDS_GUARANTEE: "only guaranteed jobs are placed in pinned cells",
    Reason.NO_TIME_ZONE: "a time without its zone is another instant in each zone",
    Reason.UNKNOWN_CLASS: "no class of service has this name",
    Reason.TASKS: "what an array does follows from its tasks",
    Reason.NOTHING_FAILED: "no task of the array is there to be begun again",
    Reason.ABOVE_PERSON_LIMIT: "the person has, or asks for, more than one may in this VC",
    Reason.PERSON_LIMIT: "its person has as much as one may in this virtual cluster",
    Reason.WAITS_FOR_WINDOW: "nodes that it could have are kept for a window that it would overrun",
    Reason.WAITS_FOR_SHARE: "the job that it is to share a GPU with is starting",
    Reason.WAITS_FOR_JOBS: "it waits for other jobs to end, as its `after` says",
    Reason.WAITS_FOR_TIME: "it waits for the time that its `begin` says",
    Reason.WAITS_FOR_PIPELINE: "as many jobs of its pipeline are at work as `max_parallel` says",
    Reason.HELD: "it is held until `skep release`",
    Reason.AMBIGUOUS_NAME: "several jobs have this name",
    Reason.DEPENDENCY_CYCLE: "the jobs wait for one another: none of them could ever start",
    Reason.DEPENDENCY_NEVER_SATISFIED: "a job that it waits for did not end as its `after` asks",
    Reason.FAIR_SHARE: "its person used the smallest part for its weight",
    Reason.WINDOW_PAST: "the window ends in the past, or before it begins",
    Reason.WINDOW_TOO_LONG: "the window is longer than any may be",
    Reason.WINDOW_TOO_FAR: "the window begins later than any may",
    Reason.WINDOWS_OVERLAP: "another window has one of these nodes at that time",
    Reason.TOO_MANY_WINDOWS: "there are as many windows as there may be",
    Reason.NAME_TAKEN: "another one has this name",
    Reason.UNKNOWN_WINDOW: "no window has this name",
    Reason.MAINTENANCE: "its node is kept free for maintenance",
    Reason.RESERVED_FOR_VC: "its node is kept free for another virtual cluster",
    Reason.PROFILE_REFUSED: "its speed is unknown, and its spec allows no runs that measure it",
    Reason.NO_ROLE: "the person has no role in this virtual cluster",
    Reason.ROLE_TOO_LOW: "the person's role does not allow it",
    Reason.NOT_ITS_OWNER: "it is another person's, and the role allows it for one's own only",
    Reason.PRIORITY_TOO_HIGH: "the priority is above the limit of the person's role",
    Reason.JOB_SUSPENDED: "the job stands still: what is run in it would stand still too",
    Reason.NO_TERMINAL: "the job is no shell, so there is no terminal to attach to",
    Reason.TAKEN_OVER: "the terminal was attached to from elsewhere",
    Reason.NOTHING_LISTENS: "no process of the job's machine listens on the port",
    Reason.CANNOT_EXECUTE: "the command cannot be executed in the job",
    Reason.TOO_MANY_SESSIONS: "as many sessions are open as there may be",
    Reason.ATTEMPT_OVER: "the attempt has ended, and what ran in it",
    Reason.SESSION_LOST: "the connection to the session was lost",
    Reason.UNAUTHORIZED: "no token came with the request, or one that nobody has",
    Reason.TOKEN_EXPIRED: "the token has expired",
    Reason.TOKEN_REVOKED: "the token was revoked",
    Reason.UNKNOWN_PERSON: "there is no such person",
    Reason.PERSON_DISABLED: "the person is disabled",
    Reason.PERSON_EXISTS: "there is a person of this name already",
    Reason.NAME_RESERVED: "the name is one of Skep's own, or no name",
    Reason.NAME_RETIRED: "the name was a removed person's, and is given to no other",
    Reason.TOO_MANY_PEOPLE: "there are as many people as there may be",
    Reason.TOO_MANY_TOKENS: "the person has as many tokens as it may",
    Reason.TOO_MANY_ATTEMPTS: "too many wrong tokens came from there",
    Reason.UNKNOWN_TOKEN: "there is no such token",
    Reason.EXPIRY_TOO_LATE: "a token may not be valid for so long",
    Reason.LOGIN_REPEATED: "this login was used before",
    Reason.LOGIN_OF_ANOTHER: "the account is another's at the provider, or a local one",
    Reason.LOGIN_NOT_BOUND: "no operator has said whose this account at the provider is",
    Reason.LOGIN_REFUSED: "the provider's token does not hold",
    Reason.JOIN_TOKEN_USED: "another node has joined by this token",
    Reason.WRONG_NAME: "the token is for another name or kind",
    Reason.WRONG_HOST: "the certificate would be for a host that is not its own",
    Reason.KEY_REVOKED: "the key was revoked, and stays so",
    Reason.NOT_SIGNED: "the certificate could not be signed",
    Reason.TOO_MANY_KEYS: "there are as many keys as there may be",
    Reason.IN_TIME: "nine times in ten it is on time",
    Reason.DEADLINE_PASSED: "the deadline is in the past",
    Reason.TOO_LITTLE_EVEN_ALONE: "the time is too short even if nothing else ran",
    Reason.CELLS_TOO_SMALL: "no cells of its virtual cluster hold it at a size that it may have",
    Reason.BEHIND_PROMISES: "the cells that it needs are promised to other jobs",
    Reason.LENGTH_UNKNOWN: "it is not known how much work the job is",
    Reason.NOT_PROFILED: "it is not known how fast the job is on these GPUs",
    Reason.PROFILED_TOO_LITTLE: "its speed was measured at too few placements",
    Reason.PROFILED_ON_ONE_NODE: "its speed was measured on one node only",
    Reason.AS_MEASURED: "it was measured how long it runs",
    Reason.KEEPS_NO_PROMISES: "the policy of its virtual cluster keeps no promises",
    Reason.BORROWED_GPUS: "an opportunistic job can lose its GPUs at any time",
    Reason.BUDGET_EXCEEDED: "its virtual cluster's time for this class is used up: it is normal",
    Reason.WITH_MORE_GPUS: "with more GPUs",
    Reason.AT_A_LATER_TIME: "at a later time",
    Reason.SLOWER_THAN_PREDICTED: "it was slower than nine of ten times were predicted to be",
    Reason.OUTRAN_ITS_LENGTH: "it runs longer than its spec says",
    Reason.CELLS_CHANGED: "its virtual cluster has fewer cells than when it was promised",
    Reason.STARTED_TOO_LATE: "it was not given its GPUs in time",
    Reason.REPEATED: "the same idempotency key was used before: it is the same job",
    Reason.UNKNOWN_CHAIN: "no such chain of cells",
    Reason.UNKNOWN_LEVEL: "the chain has no such level",
    Reason.UNKNOWN_CELL: "the chain has no such cell",
    Reason.UNKNOWN_CELL_TYPE: "no such cell type",
    Reason.UNKNOWN_PIN: "no such pinned cell",
    Reason.WRONG_FANOUT: "a cell has a number of children that its level does not have",
    Reason.CELLS_NOT_FULL: "the nodes do not fill whole cells",
    Reason.DUPLICATE_NODE: "a node is twice in one chain",
    Reason.DUPLICATE_DEVICE: "a GPU is twice in one node",
    Reason.DUPLICATE_NAME: "two cells have the same name or address",
    Reason.DUPLICATE_PIN: "a pinned cell is named or owned twice",
    Reason.OVERLAPPING_DEVICES: "a GPU of a node is in two chains",
    Reason.OVERLAPPING_PINS: "one pinned cell is inside another",
    Reason.INFEASIBLE: "the virtual clusters own more cells than there are",
    Reason.WRONG_PLACE: "the key stands at the wrong place",
    Reason.IGNORED_KEY: "this key means nothing here and is ignored",
    Reason.WAITS_FOR_GPUS: "not enough GPUs are free",
    Reason.WAITS_BEHIND: "an earlier or more important job comes first",
    Reason.WAITS_FOR_NODES: "nodes that could run it are drained or away",
    Reason.WAITS_FOR_VICTIMS: "the jobs on the GPUs that are reserved for it are making room",
    Reason.WAITS_FOR_CELLS: "its virtual cluster's cells are in use, or bad",
    Reason.WAITS_FOR_REPAIR: "bad hardware that its virtual cluster has to bear is in the way",
    Reason.WAITS_FOR_AFFINITY: "enough GPUs are idle, but not close enough to one another",
    Reason.FITS_NO_CELL: "no cell could hold it even if nothing else ran: change one or the other",
    Reason.NOT_RUNNING: "the job does not run: there is nothing to change",
    Reason.CANNOT: "the job's own side cannot do it",
    Reason.NOT_TAKEN: "a part of the job did not take it, so everything was put back",
    Reason.OVERTAKEN: "a later request, or the end of the attempt, came first",
    Reason.NO_ROOM: "no GPUs are free now that would hold it",
    Reason.ONE_NODE_ONLY: "only a gang whose ranks are all on one node can change its size",
    Reason.SIZE_NOT_OFFERED: (
        "the job cannot keep its global batch with so many workers: they must divide it equally"
    ),
    Reason.REQUESTED: "its tenant asked for it",
    Reason.SUSPENDED: "it was asked to stand still until `skep resume`",
    Reason.WAITS_FOR_ITS_GPUS: "it is suspended, and goes on once GPUs it can go on with are idle",
    Reason.HAS_GPUS: "it has GPUs: only a job that has none can be held",
    Reason.NOT_WAITING: "it has GPUs of its own: only a job that waits for some can be packed",
    Reason.PARTNER_NOT_RUNNING: "the job it is to be packed with does not run",
    Reason.PARTNER_CHANGING: "a job on those GPUs is being changed, or has to make room: try again",
    Reason.PARTNER_TOO_SMALL: "the job it is to be packed with has fewer GPUs than it needs",
    Reason.PARTNER_SPANS_NODES: "only a job whose GPUs are all on one node can be packed with",
    Reason.OTHER_GPU_TYPE: "the job it is to be packed with runs on GPUs of another type",
    Reason.TIED_ELSEWHERE: "it can only run elsewhere: by its spec, or because it is there already",
    Reason.HOST_FULL: "the node's CPUs or memory do not serve one more job",
    Reason.NODE_CLOSED: "the node takes no further work",
    Reason.GPUS_CROWDED: "as many jobs as may share a GPU are on those",
    Reason.SHARE_TAKEN: "the shares asked for come to more than a whole device",
    Reason.NOT_PACKED: "it shares its GPUs with no other job",
    Reason.SHARES_FIT: "their shares of a GPU fit on it together",
    Reason.PACKED: "packed with others on the same GPUs, as was asked for",
    Reason.UNPACKED: "it was asked to leave the GPUs that it shared, and waits for its own",
    Reason.ALONE: "the others on its GPUs have left: they are its own again",
    Reason.CELLS_RESERVED: "the cells that were reserved for it",
    Reason.ASKED_FOR: "an operator asked for it",
    Reason.DEVICE_TROUBLE: "the device, or its driver, says that something is wrong with it",
    Reason.REPEATED_FAILURES: "several jobs failed there soon after their start that run elsewhere",
    Reason.WAITS_FOR_PORT: "every port for gangs to meet on is taken at the first node's address",
    Reason.BEST_FIT_ONE_NODE: "the fullest node that holds the whole gang",
    Reason.MIXED_GANG: "no chain of cells holds the gang alone: so many workers in each of several",
    Reason.FEWEST_NODES: "no single node holds the gang: the fewest nodes that do",
    Reason.HOLDS_COPIES: "copies of its state are in the memory of these nodes, or of some of them",
    Reason.SUCCEEDED: "every process exited with status 0",
    Reason.EXITED_NONZERO: "a process exited with a status other than 0",
    Reason.KILLED_BY_SIGNAL: "a process was killed by a signal",
    Reason.EXIT_UNKNOWN: "a process vanished and its end was not seen",
    Reason.NOT_STARTED: "a process could not be started",
    Reason.PORT_BUSY: "the rendezvous port was taken by another program",
    Reason.NODE_FAULT: "a node could not start a process: it lacks room, or its disk fails",
    Reason.PEER_FAILED: "another member of the gang ended first",
    Reason.CANCELLED: "cancelled on request",
    Reason.TIME_LIMIT: "the job ran longer than its limit",
    Reason.TIME_LIMIT_NEAR: "the job's time limit is near: its processes were given a signal",
    Reason.CHECKPOINT_DUE: "the job is stored as often as its spec says",
    Reason.NO_NOTIFIER: "the cluster has no notifier: an operator starts it with targets",
    Reason.UNKNOWN_TARGET: "the operator's file has no target of this name",
    Reason.TARGET_NOT_ALLOWED: "notices may not go there: the operator's file does not allow it",
    Reason.NOT_DELIVERED: "a target did not take a message",
    Reason.IDLE: "the job did nothing for as long as its VC, or its owner, allows",
    Reason.HUNG: "the job made no mini-batch for as long as its spec allows",
    Reason.RANK_SLOW: "the gang waits for a rank that is slower than the others by itself",
    Reason.LOADER_SLOW: "the gang waits for a rank whose data loader is slower than the others'",
    Reason.RANK_HUNG: "the gang waited for a rank that made no mini-batch any more",
    Reason.HELD_UP_GANGS: "ranks of jobs of several tenants were slow or hung there",
    Reason.PREEMPTED: "a guaranteed job needed the GPUs",
    Reason.NODE_LOST: "a node was silent for too long",
    Reason.NODE_STOPPED: "a node was shut down under it",
    Reason.RETRIES_USED_UP: "it failed more often than it may be retried",
    Reason.HELD_BY_POLICY: "its virtual cluster's policy holds it back for now",
    Reason.PREEMPTED_BY_POLICY: "its virtual cluster's policy gives its GPUs to others",
    Reason.BY_POLICY: "its virtual cluster's policy wanted it",
    Reason.TO_OWN_CELLS: "it leaves GPUs that it borrowed: cells of its virtual cluster are free",
    Reason.POLICY_FAILED: "the policy raised an error: first come, first served meanwhile",
    Reason.NOT_ITS_JOB: "the policy named a job with which it may not do this",
    Reason.UNKNOWN_POLICY: "no policy has this name",
    Reason.UNKNOWN_TEMPLATE: "the virtual cluster has no template of this name",
    Reason.FIXED_BY_TEMPLATE: "the template that the job names fixes this value",
    Reason.TEMPLATE_OF_OPERATOR: "the operator has a template of this name in the cluster file",
    Reason.TOO_MANY_TEMPLATES: "the managers of the virtual cluster have as many as they may",
    Reason.BAD_OPTION: "the policy has no such option, or not with this value",
    Reason.TRIAL_OPEN: "another trial of one of the jobs, or on those GPUs, has no verdict yet",
    Reason.TRIAL_COOLS: "the same was tried not long ago, and was not worth it",
    Reason.TRIALS_ENOUGH: "as many trials as there may be were begun within the hour",
    Reason.NOT_MEASURED: "it is not known how fast one of the jobs is on GPUs of its own",
    Reason.TRIAL_GAINS: "it was tried, and the jobs are faster with it",
    Reason.TRIAL_LOSES: "it was tried, and the jobs are slower with it",
    Reason.LATENCY_ABOVE: "requests to the replica beside it took longer than its service allows",
    Reason.TRIAL_STAYS: "it was tried, and is not worth it, but there is no way back any more",
    Reason.PROBING: "its speed with another number of workers is being measured",
    Reason.PROBED: "its speed with another number of workers was measured: it has its own again",
    Reason.PROBE_BUDGET_USED: "probes of its virtual cluster have used their 2 % of its GPU time",
    Reason.TRIAL_DISTURBED: "a job of the trial ended, or was stopped or changed, before a verdict",
    Reason.NO_VERDICT: "it could not be told in time whether it was worth it",
    Reason.INTERFERES: "it and those on its GPUs make less together than they would in turns",
    Reason.OWN_GPUS: "GPUs are free that it can have for itself",
    Reason.CLOSER: "on fewer nodes it is predicted to be faster than the move costs",
    Reason.MAKES_WHOLE: "it leaves a node for a gang that then fits there as a whole",
    Reason.GPUS_NEEDED: "it has more GPUs than it asked for, and another job needs them",
    Reason.NO_PROGRESS: "it has made no mini-batch for long, and another job waits",
    Reason.GPUS_UNUSED: "it has not used its GPUs for long, and another job waits",
    Reason.UNKNOWN_SEARCH: "the virtual cluster has no such search, or it is over",
    Reason.UNKNOWN_TRIAL: "the search has no such trial to tell of",
    Reason.TOO_MANY_SEARCHES: "the virtual cluster has as many searches as it may have",
    Reason.SEARCH_ENDS: "the search has as many trials as it may have, or ends",
    Reason.FIRST_FEEDBACK: "nothing is known of the trial yet",
    Reason.BEST_PROMISE: "its learning curve promises the most",
    Reason.ITS_TURN: "of the trials that stand it stood the longest",
    Reason.PROMOTED: "it is among the best at its rung",
    Reason.RUNG_REACHED: "it waits at its rung until it is among the best there",
    Reason.NO_PROMISE: "its learning curve promises too little",
    Reason.DEMOTED: "the search's client put it behind the other trials",
    Reason.TARGET_REACHED: "a trial has reached the target",
    Reason.BUDGET_SPENT: "the search's GPU time is used up",
    Reason.ALL_TRIED: "every trial there was to make is over",
    Reason.NOT_HEARD: "nothing was heard of it for too long",
    Reason.UNKNOWN_SERVICE: "there is no such service, or it is over",
    Reason.SERVICE_EXISTS: "the virtual cluster has a service of that name",
    Reason.TOO_MANY_SERVICES: "the virtual cluster has as many services as it may have",
    Reason.SERVICE_ENDS: "the service is being stopped",
    Reason.NO_REPLICA_READY: "no replica of the service is ready to take a request",
    Reason.REPLICA_UNREADY: "the replica did not pass its health check for too long",
    Reason.OTHER_REVISION: "the service was updated, and the replica is of an earlier revision",
    Reason.FEWER_REPLICAS: "the service is to have fewer replicas",
    Reason.REQUEST_RATE: "so many requests a second need so many replicas",
    Reason.REQUEST_WAITS: "a request waits, and the service has no replica",
    Reason.SERVICE_IDLE: "nothing was asked of the service for its idle time",
    Reason.LATENCY: "requests take longer than the service allows",
    Reason.WITHOUT_ITS_PIN: "without the pinned cell that it asks for",
    Reason.WITHOUT_ITS_AFFINITY: "if its workers need not share a cell of that level",
    Reason.WITH_ANOTHER_TYPE: "on GPUs of another type",
    Reason.WITHOUT_CPUS: "if it asked for no CPUs and no memory",
    Reason.WITH_BORROWED_GPUS: "on idle GPUs, until its own cells are free (`over_quota`)",
    Reason.AS_OPPORTUNISTIC: "as opportunistic: on idle GPUs, making room for guaranteed jobs",
    Reason.AS_GUARANTEED: "as guaranteed: in its virtual cluster's cells",
    Reason.WITH_FEWER_GPUS: "with fewer GPUs",
    Reason.WITH_A_PRIORITY: "with a higher priority",
    Reason.IN_ANOTHER_VC: "in another virtual cluster",
    Reason.ONCE_OTHERS_END: "by waiting for the ends of others",
    Reason.CELLS_UNSAFE: "more cells are promised to virtual clusters than can be had",
    Reason.CELLS_MISCOUNTED: "what is kept about cells differs from what holds of their GPUs",
    Reason.GPUS_HELD_WRONGLY: "a job's GPUs are not its own, or not in cells of its VC",
    Reason.PREDICTED_SHORTEST: "shortest predicted remaining time first",
    Reason.ARRIVAL: "in order of arrival",
    Reason.LENT_MEANWHILE: "it has idle GPUs until its turn, or until others have a right to them",
    Reason.SAME_FINGERPRINT: "its parameters have the same shapes",
    Reason.SAME_FAMILY: "it is the same family",
    Reason.NEAREST_MODEL: "it is the most similar model that was measured",
    Reason.UNKNOWN_MODEL: "nothing was measured of this model",
    Reason.SHORTEST_REMAINING: "the shortest remaining time comes first",
    Reason.LEAST_REMAINING_SERVICE: "the smallest remaining time, times GPUs, comes first",
    Reason.SHORTEST_JOB: "the shortest job comes first",
    Reason.SHORTEST_HERE: "the job that would be done first where there is room comes first",
    Reason.FEWEST_GPUS: "the job with the fewest GPUs comes first",
    Reason.SMALLEST_PRODUCT: "the smallest length, times GPUs, comes first",
    Reason.LEAST_ATTAINED: "the job that has had the least service comes first",
    Reason.HIGHEST_INDEX: "the job that is the most likely to end soon comes first",
    Reason.LEAST_TIME: "the job that has run the least comes first",
    Reason.LOWEST_SHARE: "the owner with the smallest dominant share of resources comes first",
    Reason.BEST_PACKING: "the job that uses best what is free comes first",
    Reason.EARLIEST_COMPLETION: "the job that could be complete first comes first",
    Reason.LOWEST_WEIGHTED_AGE: "the weighted mean of arrival and completion is the lowest",
    Reason.MOST_GAIN: "one more worker gains the most there",
    Reason.BEST_RATIO: "this size has the best ratio of speed to cost",
    Reason.OUTRANKED: "a job that comes before it in its virtual cluster needs the GPUs",
    Reason.SLICE_OVER: "its slice of time is over, and another one waits for its turn",
    Reason.HELD_FOR_LOCALITY: "it is held back for GPUs that are closer to one another",
    Reason.SHARE_USED_UP: "what its kind of job may have of the virtual cluster is used up",
    Reason.PROMISED: "the time that was promised comes next",
    Reason.BY_DEADLINE: "the earliest deadline comes first",
    Reason.LATE_ANYWAY: "it can no longer be on time: those that can come first",
    Reason.LARGER_THAN_SHARE: "its kind of job may never have so much of the virtual cluster",
    Reason.SHORTEST_ALLOWANCE: "the job that can wait the least and be in time comes first",
    Reason.MEASURED_RATE: "by its own rate",
    Reason.PREDICTED_SPEED: "by what is predicted of its speed",
    Reason.EARLIER_RUNS: "by earlier runs of its family",
    Reason.OWNER_SAID: "by what its owner says",
    Reason.ADVISED: "the learned model puts it first",
    Reason.HELD_BY_MODEL: "the learned model holds it back",
    Reason.NO_MODEL: "the advisor has no such model, or cannot read it",
    Reason.NO_ADVICE: "nothing was heard of the model",
    Reason.ADVICE_LATE: "the model has not answered in time, or its advice has expired",
    Reason.ADVICE_BROKEN: "the model's advice is not finite, or out of bounds",
    Reason.OTHER_MODEL: "the advice is of another model than the one that may act here",
    Reason.OTHER_SCHEMA: "the model was made for other features than are seen here",
    Reason.BEYOND_TRAINING: "what is seen here is beyond what the model was trained on",
    Reason.MARGIN_TOO_SMALL: "the model hardly prefers what it proposes",
    Reason.MIXED_PRIORITIES: "jobs of different priorities wait, and the model knows of none",
    Reason.WAITED_TOO_LONG: "a job has waited for longer than its bound",
    Reason.STAGE_OFF: "the model may not act here",
    Reason.STAGE_SHADOW: "the model is watched, and does not act yet",
    Reason.STAGE_SWITCHBACK: "the model and the rule take turns",
    Reason.SHADOW_PASSED: "nothing that it would have done in shadow looks worse",
    Reason.NOT_WORSE: "in turns with the rule the model was not worse",
    Reason.MEASURED_REGRESSION: "the model was measured to be worse than the rule",
    Reason.FAULTS_REPEATED: "its advice could not be followed too often",
    Reason.COOLED_DOWN: "after a while without it, the model may be tried again",
    Reason.BAD_SPAN: "the span of time is empty, not past yet, or longer than any may be",
    Reason.REPLAY_RUNS: "a replay runs already: one does at a time",
    Reason.UNKNOWN_REPLAY: "this gateway has no such replay: it keeps the newest until it ends",
    Reason.NOTHING_TO_REPLAY: "the log has no job of that span that ran to its end",
    Reason.REPLAY_TOO_LARGE: "the replay needs more time or memory than it may have",
    Reason.REPLAY_FAILED: "the replay ended without a result",
}

assert set(TEXT) == set(Reason), "every reason has its sentence"


def meaning(codes: Iterable[str | None]) -> dict[str, str]:
    """Return the sentence of each of some codes, without those that this version does not know."""
    return {code: TEXT[Reason(code)] for code in codes if code is not None and code in TEXT}
