import { z } from 'zod'

/**
 * The error catalogue: every code this deployment can raise or record. Append-only: a code keeps its name and its
 * status for ever (conventions, section 2). It feeds /errors.json, x-error-codes and the error reference page.
 */
const catalogue = {
  ACTIVITY_INVALID_CURSOR: {
    status: 400,
    description: 'Activity cursor malformed or not a valid (created_at, id) position',
  },
  ACTOR_HAS_MESSAGES: { status: 409, description: 'Actor has linked messages; cannot delete' },
  ACTOR_NOT_FOUND: { status: 400, description: 'Referenced actor missing' },
  AGENT_AND_CHAT_EXCLUSIVE: { status: 400, description: 'Both agent_id and chat_id set on an actor' },
  AGENT_HAS_DEPENDENTS: { status: 409, description: 'Agent referenced by generations or traces' },
  AGENT_NOT_FOUND: { status: 400, description: 'Referenced agent missing' },
  AI_PROVIDER_ERROR: { status: 502, description: 'Upstream AI provider error' },
  AI_PROVIDER_HAS_DEPENDENTS: {
    status: 409,
    description: 'Live references always block; soft dependents (price overrides, usage) block until force=true',
  },
  AI_PROVIDER_MISCONFIGURED: {
    status: 400,
    description:
      'Provider record lacks required configuration (for example a vertex provider without project or key file, or bedrock/vertex with no credential where deployment credentials are not allowed)',
  },
  AI_PROVIDER_NOT_FOUND: { status: 400, description: 'Referenced AI provider missing' },
  API_KEY_PROJECT_SCOPE: {
    status: 403,
    description: 'Project-bound credential targets another project',
  },
  APPROVAL_ALREADY_RESOLVED: { status: 409, description: 'Approval already approved, rejected or expired' },
  APPROVAL_EXPIRED: { status: 409, description: 'Approval expired, can never execute' },
  APPROVAL_INVALID_EDIT: {
    status: 400,
    description: "Edited arguments must be a JSON object satisfying the tool's parameters schema",
  },
  APPROVAL_NOT_FOUND: { status: 404, description: 'Approval missing' },
  APPROVAL_REASON_REQUIRED: { status: 400, description: 'Rejecting requires a reason' },
  BOOTSTRAP_ALREADY_COMPLETED: { status: 409, description: 'A user already exists' },
  CASE_STATE_CONFLICT: { status: 409, description: "The case's status forbids the call" },
  CHAIN_NOT_FOUND: { status: 404, description: 'Continuation chain missing' },
  CHAT_NOT_FOUND: { status: 400, description: 'Referenced chat missing' },
  CONTENT_ON_HOLD: { status: 409, description: 'Purge under a legal hold' },
  CONVERSION_TIMEOUT: { status: 422, description: 'A deferred converter never called back' },
  CONVERTER_FAILED: {
    status: 422,
    description:
      'Ingestion converter failed, or deferred asynchronously where not allowed (agent converters always; tool converters under wait=true)',
  },
  CONVERTER_OUTPUT_INVALID: {
    status: 422,
    description: 'Converter output not a string, a pages array of text and page_number, or a pending status object',
  },
  DECIDER_AGENT_NOT_TOOL_LESS: {
    status: 400,
    description: "A decider's agent has a tool surface",
  },
  DECIDER_TOOL_NOT_CALLABLE: {
    status: 400,
    description: "A decider's tool is not http or pipeline, or its presets pin input or questions",
  },
  DECISION_ANSWER_INVALID: { status: 422, description: "A decider tool's answer breaks the contract" },
  DECISION_INTERRUPTED: {
    status: 500,
    description: 'The worker of a decision was lost and its tool call must not be repeated',
  },
  EMBEDDING_NOT_CONFIGURED: { status: 503, description: 'Embedding provider and model not configured' },
  EVAL_SCORING_FAILED: { status: 422, description: 'A scorer failed without a code of its own' },
  EXCEPTION_ALREADY_RESOLVED: { status: 409, description: 'Exception item already resolved' },
  EXCEPTION_NOT_FOUND: { status: 404, description: 'Exception item missing' },
  FILE_ALREADY_INGESTED: { status: 409, description: 'File already backs a document' },
  FILE_DOWNLOAD_URL_NOT_CONFIGURED: {
    status: 500,
    description: 'Rule with download_url delivery needs the deployment base URL set',
  },
  FILE_HAS_DEPENDENTS: { status: 409, description: 'File referenced by records' },
  FILE_NOT_FOUND: { status: 400, description: 'Referenced file missing' },
  FILE_PARSE_FAILED: { status: 400, description: 'File has no extractable text' },
  FILE_STORAGE_MISCONFIGURED: { status: 500, description: 'Storage backend misconfigured' },
  FILE_TOO_LARGE_FOR_SYNC: {
    status: 413,
    description: 'Too large for wait=true; retry without it and poll the document',
  },
  FORBIDDEN: { status: 403, description: 'Not permitted' },
  FORCED_TOOL_CHOICE_CANNOT_STOP: {
    status: 400,
    description: 'Tool_choice forces tools every step but no has_tool_call stop condition is declared',
  },
  FORMATION_DELETE_FAILED: {
    status: 409,
    description: 'Some resources could not be deleted; stack left delete_failed',
  },
  FORMATION_HANDLER_FAILED: {
    status: 502,
    description: 'External handler for an operator-registered resource type failed',
  },
  FORMATION_INVALID_METADATA: {
    status: 400,
    description: 'Formation-level metadata contains a substitution expression',
  },
  FORMATION_MISSING_PARAMETERS: { status: 400, description: 'Required template parameters not supplied or empty' },
  FORMATION_OPERATION_IN_PROGRESS: {
    status: 409,
    description: 'Write on a formation whose operation runs',
  },
  FORMATION_PLAN_STALE: { status: 409, description: 'Saved plan no longer matches live state' },
  FORMATION_PROTECTED: { status: 409, description: 'Delete of a protected formation' },
  FORMATION_REPLACE_CLEANUP_FAILED: {
    status: 500,
    description:
      'Superseded resource not deleted after replacement; carried on the formation and operation, never a response status',
  },
  GENERATION_ALREADY_IN_PROGRESS: { status: 409, description: 'A generation is running for the session' },
  GENERATION_CONTENT_UNAVAILABLE: {
    status: 409,
    description: 'Content never stored (trace_content_mode none) or purged',
  },
  GENERATION_FAILED: { status: 500, description: 'Unexpected failure during generation' },
  GENERATION_NOT_COMPLETED: { status: 409, description: 'Only a completed generation can be curated' },
  GENERATION_NOT_FOUND: { status: 404, description: 'Generation missing or not pending for tool output submission' },
  GUARDRAIL_HAS_REFERENCES: {
    status: 409,
    description: 'Guardrail still attached; detach first (guardrails:DetachGuardrail)',
  },
  GUARDRAIL_NOT_FOUND: { status: 400, description: 'Guardrail in guardrail_ids missing' },
  HOOK_INVALID_JSON: { status: 400, description: 'Inbound hook body not JSON' },
  HOOK_PAYLOAD_TOO_LARGE: { status: 413, description: 'Inbound hook body over 1 MiB' },
  IDEMPOTENCY_IN_PROGRESS: { status: 409, description: 'A repeat while the first request still runs' },
  IDEMPOTENCY_KEY_REUSED: { status: 409, description: 'An Idempotency-Key repeated with another body' },
  INGESTION_CALLBACK_CONFLICT: { status: 409, description: 'Document no longer awaiting this conversion attempt' },
  INGESTION_CALLBACK_INVALID_TOKEN: { status: 401, description: 'Callback token bad' },
  INGESTION_FAILED: { status: 500, description: 'Unexpected failure of an ingestion; keeps the thrown message' },
  INGESTION_RULE_GLOB_CONFLICT: { status: 409, description: 'Rule for this content_type_glob exists' },
  INGESTION_RULE_VALIDATION_FAILED: {
    status: 400,
    description:
      'Rule invalid (tool_id and agent_id both or neither; client tool; soat/mcp tool without action; bad MIME glob; preset_parameters with reserved key file or callback)',
  },
  INGESTION_TIMEOUT: { status: 500, description: 'Ingestion stalled or never picked up' },
  INTERNAL_ERROR: { status: 500, description: 'Unhandled failure' },
  INVALID_CRON_EXPRESSION: { status: 400, description: 'Triggers need a strict 5-field cron evaluated in UTC' },
  INVALID_EVENT_PATTERN: {
    status: 400,
    description:
      'Pattern must be *, prefix.*, or an exact name; platform-namespace patterns must match a registered event',
  },
  INVALID_OUTPUT_SCHEMA: { status: 400, description: 'Output_schema not a JSON Schema object' },
  INVALID_TEMPLATE_TOKEN: {
    status: 400,
    description:
      'Double-curly token other than a secret reference or a context reference, or a context token outside execute.headers / mcp.headers; single braces are for URL path parameters',
  },
  INVALID_TOOL_CONTEXT_KEY: {
    status: 400,
    description:
      "Tool_context key unusable as a header name (letters, digits and the characters !#$%&'*+-.^_|~ only; no two keys mapping to the same case-insensitive header)",
  },
  LAST_ADMIN_REQUIRED: { status: 409, description: 'Delete or demotion would leave no admin' },
  MISSING_TOOL_CONTEXT_KEY: { status: 400, description: 'Header references a context key absent from tool_context' },
  MODEL_LISTING_FAILED: { status: 502, description: 'Provider rejected model listing or answered non-JSON' },
  MODEL_LISTING_UNSUPPORTED: { status: 400, description: 'Provider type cannot enumerate models (azure, ollama)' },
  MODEL_NOT_PRICED: {
    status: 409,
    description: 'Generation on an unpriced model in a project that requires prices',
  },
  MODEL_ROUTE_HAS_DEPENDENTS: { status: 409, description: 'Route used by agents or a project default' },
  MODEL_ROUTE_NOT_FOUND: { status: 400, description: 'Referenced route missing' },
  NAME_CONFLICT: { status: 409, description: 'Name already used in the project' },
  NOT_IMPLEMENTED: { status: 501, description: 'Option not implemented' },
  NO_ACTIVE_RELEASE: { status: 409, description: 'Agent has no active release to promote or abort' },
  ORCHESTRATION_CYCLE_DETECTED: { status: 422, description: 'Graph has a cycle' },
  ORCHESTRATION_DISPATCH_FAILED: {
    status: 422,
    description: 'Workflow on_enter dispatch run ended failed, cancelled or expired',
  },
  ORCHESTRATION_HUMAN_NODE_MISMATCH: { status: 400, description: 'Node is not the active human node' },
  ORCHESTRATION_MAX_ITERATIONS_EXCEEDED: { status: 422, description: 'Run exceeded maximum iterations' },
  ORCHESTRATION_NESTED_RUN_FAILED: {
    status: 422,
    description:
      'Loop or sub_orchestration child ended non-success with no code of its own (a child with a code fails the parent under that code)',
  },
  ORCHESTRATION_NODE_FAILED: { status: 422, description: 'A node failed' },
  ORCHESTRATION_NOT_FOUND: { status: 404, description: 'Orchestration missing' },
  ORCHESTRATION_POLL_EXHAUSTED: { status: 422, description: 'Poll node hit attempt limit with fail_on_timeout set' },
  ORCHESTRATION_RUN_DEPTH_LIMIT: {
    status: 409,
    description: 'Nested child run would exceed depth bound',
  },
  ORCHESTRATION_RUN_NOT_AWAITING_INPUT: { status: 409, description: 'Run not awaiting input' },
  ORCHESTRATION_RUN_NOT_CANCELLABLE: { status: 409, description: 'Run already terminal' },
  ORCHESTRATION_RUN_NOT_FOUND: { status: 404, description: 'Run missing' },
  ORCHESTRATION_RUN_NOT_PAUSABLE: { status: 409, description: 'Pause of a terminal run' },
  ORCHESTRATION_RUN_NOT_RETRYABLE: { status: 409, description: 'Retry of a run that is live or succeeded' },
  ORCHESTRATION_RUN_PAUSED: { status: 409, description: 'Human input while a pause is in force' },
  ORCHESTRATION_VALIDATION_FAILED: {
    status: 400,
    description:
      'Graph invalid (dangling edge, missing field, cycle, input_mapping naming a state key no upstream node writes)',
  },
  OUTPUT_SCHEMA_STREAMING_UNSUPPORTED: { status: 400, description: 'Streaming with output_schema' },
  OUTPUT_SCHEMA_VALIDATION_FAILED: { status: 502, description: 'Model output violates output_schema or is not JSON' },
  PDF_PARSE_FAILED: { status: 400, description: 'Upload not a valid PDF' },
  PIPELINE_DEPTH_EXCEEDED: { status: 422, description: 'Pipeline tools nested too deep' },
  PIPELINE_INVALID_STEP: {
    status: 400,
    description:
      'Pipeline config invalid (no steps, duplicate or malformed step id, missing tool, forward reference, client-tool step)',
  },
  PIPELINE_STEP_FAILED: { status: 422, description: 'A pipeline step failed' },
  PLAYBOOK_EXECUTION_CONFLICT: {
    status: 409,
    description: "Command not valid in the execution's or step's state, or another execution is active on the case",
  },
  PLAYBOOK_HAS_ACTIVE_EXECUTIONS: { status: 409, description: 'Delete of a playbook in use' },
  PLAYBOOK_STEP_FAILED: {
    status: 422,
    description: 'Step timed out, was rejected, or could not be evaluated',
  },
  PLAYBOOK_VALIDATION_FAILED: { status: 400, description: 'Playbook definition invalid' },
  POLICY_HAS_DEPENDENTS: {
    status: 409,
    description: 'Delete of a policy that is attached',
  },
  POLICY_NOT_FOUND: { status: 400, description: 'Referenced policy missing' },
  PRECONDITION_FAILED: { status: 412, description: 'If-Match no longer matches' },
  PRICE_IN_EFFECT: { status: 409, description: 'Delete of a price row already effective' },
  PROJECT_DEFAULT_ROUTE_INHERITED: {
    status: 409,
    description: 'Default_model_route_id cannot be cleared while consumers inherit it; repointing is allowed',
  },
  PROJECT_HAS_DEPENDENTS: { status: 409, description: 'Project has dependents; force=true deletes them too' },
  PROJECT_NOT_PAUSED: { status: 409, description: 'Resume of a project that is not paused' },
  PROJECT_PAUSED: {
    status: 409,
    description: 'Work started, or one run or task resumed, in a paused project',
  },
  PROMOTION_GATE_UNMET: {
    status: 409,
    description: 'Release promotion_gate has no passing eval run against the canary version',
  },
  PUBLIC_SHARES_DISABLED: { status: 403, description: 'Share with grantee * while the deployment forbids it' },
  QUEUE_DRIVER_MISCONFIGURED: { status: 500, description: 'Orchestration queue driver misconfigured' },
  QUOTA_CONFLICT: { status: 409, description: 'Duplicate quota identity' },
  QUOTA_EXCEEDED: {
    status: 429,
    description: 'Enforced flow quota exceeded',
  },
  QUOTA_STORAGE_EXCEEDED: {
    status: 409,
    description: 'Stored footprint over a storage_bytes quota',
  },
  QUOTA_UNENFORCEABLE: {
    status: 409,
    description: 'Cost cap with on_unpriced block cannot be measured (pricing blackout)',
  },
  REQUEST_REJECTED: { status: 400, description: 'Rejected by HTTP layer' },
  RESOURCE_NOT_FOUND: {
    status: 404,
    description: 'Resource missing or invisible to the credential (a resource in another project looks identical)',
  },
  SECRET_HAS_DEPENDENTS: {
    status: 409,
    description: 'Secret referenced by AI providers; force=true deletes dependents',
  },
  SECRET_NOT_DECRYPTABLE: {
    status: 500,
    description:
      'Stored trigger or webhook secret undecryptable after the encryption key changed; rotate the secret or restore the key',
  },
  SECRET_NOT_FOUND: { status: 400, description: 'Secret named by a secret token missing in the project' },
  SERVICE_NOT_READY: { status: 503, description: '/readyz while a check fails or the process drains' },
  SESSION_CLOSED: { status: 409, description: 'Session closed' },
  SESSION_EXPIRED: { status: 410, description: 'Session expired by inactivity' },
  SHARE_CAP_EXCEEDED: {
    status: 429,
    description: 'Share cap spent',
  },
  SHARE_IN_USE: { status: 409, description: "The grantee's resources still name the shared resource" },
  SHARE_REVOKED: { status: 403, description: "Share, or the caller's acceptance, revoked by the publisher" },
  SINGLE_SESSION_CONFLICT: { status: 409, description: 'Open session already exists for the actor' },
  SYSTEM_MESSAGE_NOT_ALLOWED: {
    status: 400,
    description: 'A role system entry in messages; use the instructions field',
  },
  TASK_AUTOMATION_CHAIN_LIMIT: {
    status: 409,
    description:
      'Too many machine-driven transitions back-to-back (default ceiling 50); a move by a person, a plain API key or an approval resolution resets the chain',
  },
  TASK_AUTOMATION_PROVENANCE_MISSING: {
    status: 500,
    description:
      'Automation transition with no recorded cause (principal_id, generation_id, orchestration_run_id all null)',
  },
  TASK_GUARD_REJECTED: { status: 400, description: 'Transition guard false' },
  TASK_NOT_FOUND: { status: 404, description: 'Task missing' },
  TASK_PAYLOAD_INVALID: { status: 400, description: 'Payload violates the workflow payload_schema' },
  TASK_STATE_NOT_FOUND: { status: 400, description: 'Create state not declared by the workflow' },
  TASK_TRANSITION_CONFLICT: {
    status: 409,
    description: 'Concurrent change invalidated the transition, or task closed',
  },
  TASK_TRANSITION_NOT_FOUND: { status: 400, description: 'Transition not in the workflow' },
  TEXT_ENCODED_TOOL_CALL: { status: 502, description: 'Model wrote a tool call as plain text' },
  TOOL_AUTH_FAILED: {
    status: 502,
    description: 'Http tool execute.auth credentials could not be turned into a request credential',
  },
  TOOL_CALL_FAILED: {
    status: 422,
    description: "A transcript's tool result that failed without a code of its own; keeps the thrown message",
  },
  TOOL_CALL_NOT_SUPPORTED: { status: 422, description: 'Tool type cannot run server-side (client tools)' },
  TOOL_DISPATCH_FAILED: {
    status: 422,
    description: 'Workflow on_enter tool dispatch settled without a result (guardrail block or approval routing)',
  },
  TOOL_EGRESS_BLOCKED: {
    status: 403,
    description: 'Http or mcp tool target not publicly routable, bad scheme, or redirect chain too long',
  },
  TOOL_HAS_DEPENDENTS: {
    status: 409,
    description: 'Tool named by a decider, ingestion rule or accepted share',
  },
  TOOL_HTTP_ERROR: { status: 502, description: 'Http tool got a non-2xx' },
  TOOL_NOT_FOUND: { status: 400, description: 'Referenced tool missing' },
  TRIGGER_ACTION_NOT_ALLOWED: {
    status: 400,
    description:
      'Action only valid for tool targets (required for soat/mcp tools); cron required for schedule triggers and rejected otherwise',
  },
  TRIGGER_CAUSATION_LIMIT: { status: 409, description: 'Event trigger already in the causal chain or chain too deep' },
  TRIGGER_CREATOR_UNAVAILABLE: { status: 409, description: 'Trigger creator no longer exists' },
  TRIGGER_FIRING_ABANDONED: { status: 500, description: 'The worker died on every delivery of a tool firing' },
  TRIGGER_INPUT_INVALID: { status: 400, description: 'Effective input invalid for target' },
  TRIGGER_NOT_ACTIVE: { status: 409, description: 'Trigger inactive' },
  TRIGGER_RECURSION_FORBIDDEN: { status: 403, description: 'Trigger-scoped credential cannot fire a trigger' },
  TRIGGER_TARGET_NOT_FOUND: { status: 400, description: 'Target missing or type mismatch' },
  TRIGGER_TYPE_IMMUTABLE: { status: 400, description: 'Trigger type cannot change' },
  UNAUTHORIZED: { status: 401, description: 'Authentication required or token invalid' },
  UNSUPPORTED_FILE_TYPE: { status: 400, description: 'Content type cannot be ingested' },
  UPLOAD_TOKEN_EXPIRED: { status: 410, description: 'Upload token expired' },
  UPLOAD_TOKEN_NOT_FOUND: { status: 404, description: 'Upload token unknown' },
  UPLOAD_TOKEN_USED: { status: 409, description: 'Upload token already used' },
  VALIDATION_FAILED: {
    status: 400,
    description: 'Body failed validation (also pagination, status filter and time-range errors)',
  },
  VERSION_CONFLICT: {
    status: 409,
    description: 'Stale expected_version in a body',
  },
  WORKFLOW_HAS_OPEN_TASKS: { status: 409, description: 'Workflow has open tasks' },
  WORKFLOW_NOT_FOUND: { status: 404, description: 'Workflow missing' },
  WORKFLOW_VALIDATION_FAILED: {
    status: 400,
    description:
      'Workflow invalid (duplicate state names, not exactly one initial state, unknown transition state, malformed guard, on_enter dispatch without target)',
  },
} as const satisfies Record<string, { status: number; description: string }>

export type ErrorCode = keyof typeof catalogue

/** Messages a caller reads, the first three fixed by the contract; every other code speaks with its description unless the raiser says more. */
const messages: Partial<Record<ErrorCode, string>> = {
  UNAUTHORIZED: 'Unauthorized',
  FORBIDDEN: 'Forbidden',
  INTERNAL_ERROR: 'Internal Server Error',
  RESOURCE_NOT_FOUND: 'There is no such resource',
  GENERATION_NOT_FOUND: 'There is no such generation',
  ACTOR_NOT_FOUND: 'The actor named does not exist in the project',
  AGENT_NOT_FOUND: 'The agent named does not exist in the project',
  AI_PROVIDER_NOT_FOUND: 'The AI provider named does not exist in the project',
  CHAT_NOT_FOUND: 'The chat named does not exist in the project',
  FILE_NOT_FOUND: 'The file named does not exist in the project',
  POLICY_NOT_FOUND: 'The policy named does not exist',
  SECRET_NOT_FOUND: 'The secret named does not exist in the project',
  TOOL_NOT_FOUND: 'The tool named does not exist in the project',
  ACTOR_HAS_MESSAGES: 'The actor has written messages and cannot be deleted',
  AGENT_AND_CHAT_EXCLUSIVE: 'An actor is linked to an agent or to a chat, not to both',
  API_KEY_PROJECT_SCOPE: 'The credential is bound to another project',
  CONVERTER_FAILED: 'The converter failed',
  CONVERTER_OUTPUT_INVALID: 'The converter answered neither a text nor pages',
  EMBEDDING_NOT_CONFIGURED: 'The deployment has no embedding model',
  FILE_ALREADY_INGESTED: 'The file has a document already',
  FILE_HAS_DEPENDENTS: 'Other records refer to the file',
  FILE_PARSE_FAILED: 'The file has no extractable text',
  FILE_STORAGE_MISCONFIGURED: 'The file storage of the deployment is misconfigured',
  FILE_TOO_LARGE_FOR_SYNC: 'The file is too large to wait for its ingestion',
  FORCED_TOOL_CHOICE_CANNOT_STOP: 'tool_choice forces a tool on every step but nothing would stop the turn',
  GENERATION_ALREADY_IN_PROGRESS: 'A generation is running already',
  GENERATION_CONTENT_UNAVAILABLE: 'The content was never stored or has been erased',
  IDEMPOTENCY_KEY_REUSED: 'The Idempotency-Key was used with another body',
  IDEMPOTENCY_IN_PROGRESS: 'The first request with this Idempotency-Key still runs',
  INGESTION_CALLBACK_CONFLICT: 'The document waits for this conversion no longer',
  INGESTION_CALLBACK_INVALID_TOKEN: 'The callback token is not valid for this document',
  INGESTION_RULE_GLOB_CONFLICT: 'Another rule has this content_type_glob and path_prefix',
  LAST_ADMIN_REQUIRED: 'No admin would be left',
  NAME_CONFLICT: 'The name is taken',
  OUTPUT_SCHEMA_STREAMING_UNSUPPORTED: 'An agent with an output_schema cannot be streamed',
  PDF_PARSE_FAILED: 'The file cannot be read as a PDF',
  PRECONDITION_FAILED: 'The record has changed since it was read',
  PROJECT_NOT_PAUSED: 'The project is not paused',
  PROJECT_PAUSED: 'The project is paused',
  PROJECT_HAS_DEPENDENTS: 'The project still holds resources; force=true deletes them too',
  QUOTA_CONFLICT: 'A quota with the same scope, metric and window exists',
  QUOTA_EXCEEDED: 'The quota is spent for this window',
  QUOTA_STORAGE_EXCEEDED: 'The storage quota does not allow for more',
  SERVICE_NOT_READY: 'The service is not ready',
  SESSION_CLOSED: 'The session is closed',
  SESSION_EXPIRED: 'The session has expired',
  SINGLE_SESSION_CONFLICT: 'The actor has an open session with this agent',
  SYSTEM_MESSAGE_NOT_ALLOWED: 'Messages with the role system are not accepted; use the instructions field',
  UNSUPPORTED_FILE_TYPE: 'Nothing here reads files of this content type',
  UPLOAD_TOKEN_EXPIRED: 'The upload token has expired',
  UPLOAD_TOKEN_NOT_FOUND: 'There is no such upload token',
  UPLOAD_TOKEN_USED: 'The upload token has been used',
  VERSION_CONFLICT: 'The record is at another version than expected_version',
}

const classHints: Record<number, string> = {
  400: 'Check the payload, the parameters and the ids it names; meta says which field.',
  401: 'Send a valid user token or project key as a bearer credential.',
  403: 'The credential lacks the action or belongs to another project.',
  404: 'Check the id and whether the credential can see its project.',
  409: 'The request is well formed but the state of the resource forbids it; read it again.',
  410: 'The resource is gone for good.',
  412: 'Read the record again and repeat the request with its new ETag.',
  413: 'Send a smaller payload.',
  422: 'The request was accepted but could not be carried out; see meta.',
  429: 'Back off and repeat after the time named by Retry-After.',
  500: 'Retry with backoff; the detail is in the server log under the request id.',
  501: 'This deployment does not offer the option.',
  502: 'An upstream dependency failed; meta says what it answered.',
  503: 'A capability this needs is not configured or not ready.',
}

const ownHints: Partial<Record<ErrorCode, string>> = {
  REQUEST_REJECTED: 'The HTTP layer refused the request: check its method, size, encoding and range.',
  VALIDATION_FAILED: 'meta.problems lists every offending field by its path.',
  IDEMPOTENCY_IN_PROGRESS: 'Wait for the first request to end, then repeat with the same key.',
  SERVICE_NOT_READY: 'Try again shortly; meta.checks names what is not ready.',
  CONVERSION_TIMEOUT: 'See why the converter never called back, then repeat with POST /documents/{document_id}/ingest.',
  CONVERTER_FAILED:
    'meta.cause says what the converter ended with; mend it or its rule, then repeat with POST /documents/{document_id}/ingest.',
  CONVERTER_OUTPUT_INVALID: 'Have the converter answer a string, or pages of text and page_number, and repeat.',
  EMBEDDING_NOT_CONFIGURED:
    'The operator sets EMBEDDING_PROVIDER and EMBEDDING_MODEL; until then searches go by words alone.',
  FILE_ALREADY_INGESTED:
    'Read the file again with POST /documents/{document_id}/ingest; meta.document_id names the document.',
  FILE_HAS_DEPENDENTS:
    'meta names what refers to the file, GET /files/{file_id}/dependents lists it; delete that first. A document takes its file with it.',
  FILE_PARSE_FAILED:
    'A PDF of images needs an ingestion rule with a converter; give a file without bytes its content first.',
  FILE_STORAGE_MISCONFIGURED:
    'Repeating does not help: the operator corrects the settings FILES_*. muster doctor and the server log say what is wrong.',
  FILE_TOO_LARGE_FOR_SYNC:
    'Repeat without wait=true, then poll GET /documents/{document_id}/status or follow the event documents.ingested.',
  INGESTION_CALLBACK_CONFLICT:
    'Drop the result: the attempt has ended, or has been replaced by another with an address of its own.',
  INGESTION_CALLBACK_INVALID_TOKEN:
    'Call back the whole address that came with the file, with its query; it is good for one attempt and for a limited time.',
  INGESTION_FAILED: 'The message says which limit or failure; repeat with POST /documents/{document_id}/ingest.',
  INGESTION_TIMEOUT:
    'See that workers for ingestion run (muster doctor), then repeat with POST /documents/{document_id}/ingest.',
  INGESTION_RULE_GLOB_CONFLICT:
    'Change the rule that is there (GET /ingestion-rules lists them), or give this one another path_prefix.',
  NAME_CONFLICT: 'Take another name or path, or change or delete what has this one.',
  PDF_PARSE_FAILED: 'Send a PDF that is whole and opens without a password.',
  QUOTA_STORAGE_EXCEEDED:
    'Delete files, documents or other content, or raise the limit of the quota that meta.quota_id names.',
  UNSUPPORTED_FILE_TYPE:
    'Make an ingestion rule with a converter for the type (POST /ingestion-rules), or convert the file to PDF, text or Markdown.',
  UPLOAD_TOKEN_EXPIRED: 'Ask for a new one with POST /files/presigned-url.',
  UPLOAD_TOKEN_NOT_FOUND:
    'Check the address, or ask for a new one with POST /files/presigned-url: whoever asked for this one may have lost the right.',
  UPLOAD_TOKEN_USED: 'One token is for one upload; ask for a new one with POST /files/presigned-url.',
  VERSION_CONFLICT: 'Read the record again and repeat with its version as expected_version.',
}

/** Status, message and hint of a code. */
export function errorEntry(code: ErrorCode): { status: number; description: string; message: string; hint: string } {
  const entry = catalogue[code]
  return {
    ...entry,
    message: messages[code] ?? entry.description,
    hint: ownHints[code] ?? classHints[entry.status] ?? classHints[500],
  }
}

export const errorCodes = Object.keys(catalogue) as ErrorCode[]
export const isErrorCode = (code: unknown): code is ErrorCode => typeof code === 'string' && code in catalogue

/** One offending field: `path` in wire names with `[index]`. */
export type Problem = { code: string; path: string; message: string }

/** A failure kept in a record's `error` field (reference.md, recorded failures). */
export const RecordedFailure = z
  .object({ code: z.string(), message: z.string(), meta: z.record(z.string(), z.unknown()).optional() })
  .meta({ id: 'RecordedFailure' })
export type RecordedFailure = z.output<typeof RecordedFailure>

/** The only error that reaches a caller. `status` differs from the catalogue's for REQUEST_REJECTED alone. */
export class AppError extends Error {
  readonly code: ErrorCode
  readonly status: number
  readonly meta?: Record<string, unknown>
  readonly headers?: Record<string, string>
  constructor(
    code: ErrorCode,
    options: {
      message?: string
      meta?: Record<string, unknown>
      status?: number
      headers?: Record<string, string>
      cause?: unknown
    } = {},
  ) {
    super(options.message ?? errorEntry(code).message, { cause: options.cause })
    this.code = code
    this.status = options.status ?? catalogue[code].status
    this.meta = options.meta
    this.headers = options.headers
  }

  /** The failure as it is recorded on a resource. */
  recorded(): RecordedFailure {
    return { code: this.code, message: this.message, ...(this.meta ? { meta: this.meta } : {}) }
  }
}

/** Raises a catalogued error. */
export function raise(code: ErrorCode, options: ConstructorParameters<typeof AppError>[1] = {}): never {
  throw new AppError(code, options)
}

/** Raises VALIDATION_FAILED with its problems; the message names the first. */
export function invalid(problems: Problem | Problem[]): never {
  const items = Array.isArray(problems) ? problems : [problems]
  const first = items[0]
  throw new AppError('VALIDATION_FAILED', {
    message: first.path ? `${first.path}: ${first.message}` : first.message,
    meta: { problems: items },
  })
}

/** The wire body of an error. */
export function errorBody(error: AppError, docsBaseUrl: string) {
  return {
    error: {
      code: error.code,
      message: error.message,
      hint: errorEntry(error.code).hint,
      docs_url: `${docsBaseUrl}/errors#${error.code}`,
      ...(error.meta ? { meta: error.meta } : {}),
    },
  }
}

/** What /errors.json and x-error-codes serve. */
export const errorDocument = (docsBaseUrl: string) =>
  Object.fromEntries(
    errorCodes.map(code => {
      const { status, description, hint } = errorEntry(code)
      return [code, { status, description, hint, docs_url: `${docsBaseUrl}/errors#${code}` }]
    }),
  )
