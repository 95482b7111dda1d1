/**
 * Labels and help texts of the fields that forms take from the API. The build puts them into the forms in place of the API's
 * descriptions (`console/fields.ts`), so a view loads only the words of its fields.
 */

/** A help text, or a label with a help text. Without a label, the words of the field's name are it. */
export type Words = string | readonly [label: string, help?: string]

/** By the noun of an operation and the path of an object in its body, as in imports of `fields:createAgent.knowledge_config`. */
export type FieldWords = Record<string, Record<string, Words>>

const chunks = {
  chunk_strategy:
    'How the text is cut: page by page, as one piece, into pieces of a fixed size, or by what suits the text.',
  chunk_unit: 'What sizes count: characters, or tokens of the model.',
  chunk_size: 'Length of a piece. Only for pieces of a fixed size and for the automatic way.',
  chunk_overlap: 'How much of a piece the next one repeats. Less than the size of a piece.',
} satisfies Record<string, Words>

const request = {
  url: ['URL', 'Address that is called. After the host it may contain arguments in braces, and secrets.'],
  method: 'POST without a choice.',
  headers: 'Headers of each call, as JSON. Values may contain secrets and keys of the tool context.',
  body_mode: 'How arguments are sent in the body.',
  auth: ['Sign-in', 'Credential that is computed for each call, as JSON.'],
  timeout_ms: ['Timeout in milliseconds', 'Time after which a call fails, redirects included.'],
  sign: ['Signing secret', 'Secret whose value signs each call, so that the receiver can check the sender.'],
} satisfies Record<string, Words>

const tool = {
  name: 'Name that models see.',
  type: 'Who carries out the call.',
  description: 'What the tool does and when to call it. Models read it.',
  parameters: 'JSON Schema of the arguments. Without one, any arguments are accepted.',
  execute: ['Request'],
  mcp: ['MCP server'],
  actions: 'Operations of the platform, or tools of the MCP server, that the tool offers. Without any, all of them.',
  denied_actions: 'Tools of the MCP server that are left out, also where they are listed above.',
  context_keys: 'Keys of the tool context that calls receive. Without any, all of them.',
  preset_parameters: 'Arguments with fixed values, as JSON. They replace arguments of the caller.',
  output_mapping:
    'Expression in JSON Logic that makes the result from the answer. Without one, the answer is the result.',
  idempotent: 'Whether a repeated call with its key has no further effect.',
  pipeline: 'Steps of the tool, as JSON.',
  guardrail_ids: ['Guardrails', 'They check every call of the tool.'],
} satisfies Record<string, Words>

const cases = {
  title: 'What the case is about, in one line.',
  description: 'The request or problem, and the result that the customer expects.',
  priority: 'Normal without a choice.',
  subject: 'Item or person that the case concerns, as JSON.',
  assignee: 'Name of who takes care of it.',
  due_at: ['Due', 'For people: nothing happens when it passes.'],
  fields: 'Data that playbooks read and write, as JSON.',
  external_id: ['External ID', 'ID of the case in another system, unique in the project.'],
  playbook_id: ['Playbook', 'Playbook that executions of the case use.'],
  start_execution: 'Whether an execution of the playbook starts with the case.',
} satisfies Record<string, Words>

const session = {
  name: 'Name in lists.',
  auto_generate: ['Reply to every message', 'Whether the agent replies to each message without a further request.'],
  message_delay_seconds: ['Delay in seconds', 'Time without a further message after which the agent replies.'],
  inactivity_ttl_seconds: [
    'Expires after seconds',
    'Time without a message after which the session expires. 0: never.',
  ],
  takeover_timeout_seconds: [
    'Takeover ends after seconds',
    'Time without a message of the operator after which the agent is in charge again.',
  ],
  state: 'Data that the agent shares with its front end, as JSON.',
  agent_id: ['Agent', 'Agent that answers in the fork. Without a choice, the agent of the session.'],
} satisfies Record<string, Words>

const overrides = {
  tool_context: 'Headers that calls of tools carry, as JSON.',
  guardrail_context: 'Data that rules of guardrails read as the context, as JSON.',
} satisfies Record<string, Words>

const definitions = {
  name: 'Name in lists.',
  description: 'Purpose, for people.',
} satisfies Record<string, Words>

const playbook = {
  ...definitions,
  steps: 'Steps in their order, 1 to 100, as JSON.',
  resolve_case: 'Whether the end of an execution resolves its case.',
  case_schema: 'JSON Schema of the fields of a case, checked when an execution starts.',
  input_schema: 'JSON Schema of the input of an execution.',
  outcome: 'Outcome of a completed execution: a text, or an expression that makes one.',
} satisfies Record<string, Words>

const workflow = {
  ...definitions,
  states: 'States of tasks, 1 to 100, as JSON. One of them is the first.',
  transitions: 'Ways from one state to another, as JSON.',
  payload_schema: 'JSON Schema of the data of a task.',
} satisfies Record<string, Words>

const task = {
  title: 'What the task is about, in one line.',
  assignee: 'Name of who takes care of it.',
  due_at: ['Due', 'For people: nothing happens when it passes.'],
  payload: 'Data of the task, as JSON.',
  state: 'State in which the task begins. Without a choice, the first state of the workflow.',
  note: 'Kept in the history of the task.',
} satisfies Record<string, Words>

const price = {
  meter_type: 'Kind of the usage. Tokens of models without a choice.',
  model: 'Name of the model, or the unit of usage of the platform.',
  component: 'Part of the usage that the price is for, such as input or output tokens.',
  unit: 'Unit of the component. The price applies only to usage in this unit.',
  unit_price: 'US dollars for one unit.',
  tier: ['Service tier', 'Tier of the vendor that the price is for. Without one, every tier without its own price.'],
  above_tokens: 'Number of prompt tokens above which the price applies to the whole call.',
  effective_from: 'Time from which the price applies. The latest one in effect counts.',
  provider: 'Who bills the usage.',
  ai_provider_id: ['Provider of the project', 'Provider for which the price replaces the general one.'],
  resource: 'Resource name of the tool or agent whose calls the price adds to.',
  quantity: 'Expression in JSON Logic that counts the units of a call. Without one, each call is one unit.',
} satisfies Record<string, Words>

const memory = {
  content: 'One fact in plain words.',
  actor_id: ['End user', 'End user that the fact belongs to.'],
  supersedes: 'ID of the fact that this one replaces, however similar they are.',
  expires_at: ['Expires', 'Time from which the fact no longer holds. Without one, it stays.'],
  metadata: 'Data for your own use, as JSON.',
} satisfies Record<string, Words>

const project = {
  name: 'Name in lists.',
  description: 'What the project is for.',
  search_language: 'Language of the texts, for searches by words.',
  default_model_route_id: ['Default model route', 'Used where an agent names neither a provider nor a route.'],
  guardrail_ids: ['Guardrails', 'They check every tool call of the project, in this order.'],
  trace_content_mode: ['Content of turns', 'Whether traces contain messages, calls and results.'],
  trace_content_retention_days: ['Keep content of turns, days', 'Without a number, content is kept.'],
  trace_retention_days: ['Keep traces, days', 'Days after their last activity. Without a number, traces are kept.'],
  conversation_retention_days: [
    'Keep conversations, days',
    'Days after their last activity, with their sessions and messages. Without a number, they are kept.',
  ],
  run_retention_days: [
    'Keep runs, days',
    'Days after their end, with their nested runs. Without a number, they are kept.',
  ],
  content_hold_until: ['Legal hold until', 'No content is erased before this time, neither on request nor by its age.'],
  max_concurrent_runs: ['Runs at the same time', 'Without a number, only the limit of the deployment applies.'],
  max_run_depth: ['Depth of nested runs', 'Without a number, the limit of the deployment applies.'],
  max_chain_generations: ['Turns in a chain', 'How many turns may continue one another. The lowest limit applies.'],
  require_priced_model: ['Only models with prices', 'Whether turns are refused on models without a price.'],
  audit_reads_enabled: ['Audit reads', 'Whether reads are written to the audit log too.'],
} satisfies Record<string, Words>

const quota = {
  scope: 'Who the limit is for.',
  scope_ref: [
    'ID',
    'ID of the key, agent or end user. Without one, the limit is for all of them; each end user then has a separate budget.',
  ],
  metric: 'Measured quantity.',
  window: 'Period of the measurement, in UTC.',
  limit: 'Largest quantity in a period.',
  mode: 'Whether requests over the limit are refused, or only reported.',
  meter_type: 'Kind of usage whose cost counts. Without a choice, all of them.',
  on_unpriced: ['Usage without a price', 'Whether usage without a price is refused where the limit is in dollars.'],
  warn_at: 'Shares of the limit at which a warning is sent, as JSON: 0.8 is 80 %.',
  reserve: ['Count active turns', 'Whether the expected usage of turns that run counts already.'],
} satisfies Record<string, Words>

/** Words of fields by noun; `*` has the words of fields with one meaning everywhere. */
export const FIELD_WORDS: FieldWords = {
  '*': {
    name: 'Name in lists.',
    description: 'Purpose, for people.',
    metadata: 'Data for your own use, as JSON.',
    reason: 'Why, for those who read the history.',
    expires_at: ['Expires', 'Without a time, it does not expire.'],
    version_label: ['Label of the version'],
    title: 'Name in lists and searches.',
    tags: 'Tags, as JSON.',
    ...overrides,
  },
  Agent: {
    name: 'Name in lists and for end users.',
    description: 'What the agent does. End users may see it.',
    instructions: 'What the agent is to do, how, and in which tone. The model reads it before every message.',
    ai_provider_id: [
      'Provider',
      'Serves the model. Without it and without a route, the default route of the project is used.',
    ],
    model_route_id: ['Model route', 'Chooses provider and model by rules, instead of a provider.'],
    model: 'Without one, the default model of the provider. A route has its own models.',
    temperature: 'Higher numbers give more varied answers. Without one, the default of the vendor.',
    max_steps: ['Largest number of steps', 'How often the model may be called in a turn. 20 without a number.'],
    max_output_tokens: ['Largest output in tokens', 'Without a number, the default of the vendor.'],
    tool_bindings: ['Tools', 'What the model may call.'],
    guardrail_ids: ['Guardrails', 'They check every tool call of the agent.'],
    knowledge_config: ['Knowledge', 'Sources of searches before each turn, and the store of new facts.'],
  },
  'Agent.knowledge_config': {
    memory_store_ids: ['Memory stores', 'Facts that are searched.'],
    document_ids: ['Documents', 'Single documents that are searched.'],
    document_paths: ['Folders', 'Folders or paths whose documents are searched.'],
    tags: 'Tags that facts and documents must have, as JSON.',
    min_score: ['Least similarity', 'From 0 to 1; 0.5 without a number.'],
    rrf_k: ['Weight of ranks', 'Larger numbers make the first ranks less important.'],
    recency_half_life_days: ['Half-life in days', 'Age at which a fact counts half. 0: age does not matter.'],
    limit: ['Number of results', 'Largest number for a turn. 5 without a number.'],
    write_memory_scope: ['Facts belong to', 'The end user of the turn, or the store as a whole.'],
    write_memory_store_id: ['Writes facts to', 'Memory store that the agent may write to.'],
    share_between_actors: [
      'Read facts of all end users',
      'Whether turns read the facts of all end users instead of the facts of one end user.',
    ],
  },
  'Agent.tool_bindings': {
    tool_id: ['Tool'],
    tool: ['Inline tool', 'Defined here, for this agent alone.'],
    label: ['Activity', 'What end users see while the tool runs, such as: Checking the order'],
  },
  'Agent.tool_bindings.tool': tool,
  'Agent.tool_bindings.tool.execute': request,
  'Agent.tool_bindings.tool.mcp': request,
  AgentRelease: {
    stable_version: 'Version that the other callers get.',
    canary_version: 'Version to try.',
    canary_percent: ['Share in percent', 'Share of end users that get the version to try.'],
    promotion_gate: ['Gate', 'Evaluation that the version must pass before all callers get it.'],
  },
  AiProvider: {
    name: 'Name in lists.',
    provider: 'Vendor of the models, or a server that speaks the API of OpenAI.',
    default_model: 'Model of agents that name none.',
    secret_id: ['Secret', 'Secret with the credential of the vendor.'],
    base_url: ['Base URL', 'Address of the API, where it is not the address of the vendor.'],
    config: 'Settings of the vendor, such as a region or headers, as JSON.',
  },
  Case: cases,
  CaseEvidence: { reason: 'Why it is withdrawn.' },
  Conversation: {
    name: 'Name in lists.',
    status: 'For your own use: a closed conversation still accepts messages.',
    actor_id: ['End user', 'End user that the conversation belongs to.'],
  },
  DatasetItem: {
    input: 'Messages for the agent, the oldest first, as JSON.',
    expected_output: 'What the agent should answer.',
    metadata: 'Data that scorers and groups of results use, as JSON.',
  },
  DatasetItemFromGeneration: {
    expected_output: 'What the agent should answer. Without a text, its answer in this turn.',
    metadata: 'Data that scorers and groups of results use, as JSON.',
  },
  Document: {
    ...chunks,
    content: 'Text of the document.',
    title: 'Searched together with the text.',
    path: 'Folder and file name. Without one, the name of the file.',
    metadata: 'Data of the document, as JSON. Folders may have rules for it.',
  },
  Eval: {
    name: 'Name in lists.',
    agent_id: ['Agent', 'Agent that is evaluated.'],
    dataset_id: ['Dataset', 'Items that the agent answers.'],
    scorers: 'How answers are scored, 1 to 20 ways, as JSON.',
    pass_threshold: 'Share of items that must pass for the run to pass. Without one, a run has no verdict.',
    max_error_rate: 'Share of items that may end with an error. Without one, any.',
    group_by: 'Key in the data of items by which results are grouped.',
  },
  EvalRun: {
    agent_version: ['Version of the agent', 'Without a number, the version that most callers get.'],
    baseline_run_id: ['Compare with', 'Earlier run of this evaluation.'],
  },
  Export: { formats: 'For programs, or for readers.' },
  FileMetadata: { filename: 'New name of the file.', prefix: ['Folder', 'Folder that the file is moved to.'] },
  FormationResource: {
    logical_id: ['Name in the template'],
    physical_resource_id: ['ID', 'ID of an existing record of the project.'],
  },
  GenerationFeedback: {
    rating: '1 is good, -1 is bad.',
    score: 'From 0 to 1.',
    labels: 'Such as wrong or rude; at most 10.',
    comment: 'For people; no model reads it.',
  },
  Guardrail: {
    name: 'Name in lists and in decisions.',
    description: 'What the guardrail is for.',
    context_tool_id: [
      'Context tool',
      'Tool that is called before an evaluation. Rules read its result as the context.',
    ],
    context_mode: 'What happens to the context of the caller where there is a context tool.',
    args: 'Arguments of the call, as JSON.',
    guardrail_context: 'Context of the caller, as JSON.',
    tool_id: ['Tool', 'Tool of the call.'],
    document: 'Rules to try instead of the stored ones, as JSON.',
  },
  'Guardrail.document': {
    class:
      'A runs, B checks the guard, C needs an approval, D is stopped. Or an expression in JSON Logic that gives one of them.',
    default_class: 'Class where the expression gives none. C without a choice.',
    guard: 'Condition in JSON Logic for calls of class B.',
    escalate: 'Whether a call that fails the guard needs an approval instead of being stopped.',
    expires_in: ['Approvals expire after seconds', 'A day without a number.'],
    forbid_self_approval: ['No own approvals', 'Whether those who started the work may not approve its calls.'],
    approver: 'Who approves: an operator, or the end user of the session.',
    end_user_arguments: ['Arguments shown to end users', 'Names of the arguments that an end user who approves sees.'],
  },
  Memory: memory,
  MemoryEntry: memory,
  MemoryRule: {
    on: ['After', 'What the rule reads: completed turns, or replies in conversations.'],
    source_agent_ids: ['Of agents', 'Agents whose turns are read. Without any, all agents of the project.'],
    agent_id: ['Extracting agent', 'Agent that finds the facts. Without an agent and a tool, a model finds them.'],
    tool_id: ['Extracting tool', 'Tool that finds the facts.'],
    action: 'Operation of a platform tool, or tool of an MCP server.',
    preset_parameters: 'Arguments of the tool, as JSON.',
    prompt: 'Instruction of the model that finds facts. Without one, the built-in instruction.',
    ai_provider_id: ['Provider', 'Provider of the model that finds facts. Without one, the provider of the agent.'],
    model: 'Without one, the model of the agent or the default of the provider.',
    enabled: 'Whether the rule is active.',
    include_evaluations: 'Whether turns of evaluations are read too. Their input is test data.',
    generation_id: ['Turn', 'ID of a completed turn of the project.'],
  },
  MemoryStore: {
    name: 'Name in lists.',
    description: 'What the store is for.',
    duplicate_threshold: 'Similarity from 0 to 1 at which a fact counts as known. 0.95 without a number.',
    supersede_threshold: 'Similarity at which a fact replaces the nearest one. Less than the other threshold.',
    actor_memory_limit: ['Facts of an end user', 'Largest number of current facts. Another one ends the oldest.'],
  },
  Playbook: playbook,
  PlaybookExecution: {
    playbook_id: ['Playbook', 'Without a choice, the playbook of the case.'],
    playbook_version: ['Version', 'Without a number, the current version.'],
    input: 'Input that steps read, as JSON.',
  },
  PlaybookStep: { assignee: 'Name of who takes care of the step. Empty: no person.' },
  'Prices.prices': price,
  'ProjectPrices.prices': price,
  Project: project,
  ProjectKey: {
    name: 'Name in lists, such as the application that uses the key.',
    policy_ids: ['Policies', 'They limit the key. Without any, it has the permissions of its owner.'],
    allowed_ips: ['Allowed IPs', 'Addresses and ranges from which the key is accepted. Without any, all of them.'],
    expires_at: ['Expires at', 'Without a choice, the key does not expire.'],
    grace_seconds: ['Old key works for seconds', 'Without a number, it ends now.'],
  },
  Quota: quota,
  Run: {
    ...overrides,
    from_node_id: ['From node', 'Node to start from. Its results and the results of later nodes are discarded.'],
    expires_in: ['Expires after seconds'],
    input: 'Input that nodes read, as JSON.',
  },
  Secret: {
    name: 'Name in lists.',
    value: 'Stored encrypted, and never shown again.',
    source: 'External store from which the value is read when it is used, as JSON. Instead of a value.',
    expires_at: ['Expires at', 'When the vendor ends it. An exception is raised 14 days before.'],
  },
  Session: session,
  Share: {
    grantee: ['Project', 'ID of the project that may accept the share.'],
    cap: ['Largest number of calls', 'For each project that accepts. Without a number, any.'],
    expires_at: ['Expires at', 'Without a time, the share does not expire.'],
  },
  Task: task,
  Tool: tool,
  'Tool.execute': request,
  'Tool.mcp': request,
  Trigger: {
    name: 'Name in lists, unique in the project.',
    description: 'What the trigger is for.',
    target_id: ['Target', 'Record that is started.'],
    action: 'Operation of a platform tool, or tool of an MCP server; for a formation: detect_drift.',
    input: 'Input of every start, as JSON. Input of a single start goes over it, key by key.',
    cron: 'Minute, hour, day of month, month, day of week.',
    event_pattern: 'Name of an event, or the beginning of names with a star.',
    event_filter: 'Expression in JSON Logic that an event must fulfil.',
    active: 'Whether the trigger can fire.',
    policy_id: ['Policy', 'Limits the started work, and the events that are received.'],
    input_mapping: 'Expressions in JSON Logic that make the input, as JSON.',
    timezone: 'Time zone of the schedule. UTC without one.',
    overlap_policy: 'What happens at an occurrence while an earlier one still works.',
    misfire_policy: 'What happens after occurrences that were missed.',
    signature_scheme: 'How callers sign: time and body, or the body alone.',
    signature_header: 'Name of the header, where callers sign the body alone.',
  },
  TriggerSecret: { keep_previous_seconds: ['Old secret works for seconds', 'Without a number, it ends now.'] },
  UsageThreshold: {
    metric: 'Compared quantity.',
    window: 'Period that is compared: the month in UTC, or the 24 hours before.',
    threshold: 'Quantity at which the event is sent.',
  },
  User: {
    username: '1 to 128 characters, unique whether upper or lower case.',
    password: 'At most 1,024 bytes.',
    role: 'Admins manage the deployment. Users have the permissions of their policies.',
    display_name: 'Name that end users see when the user writes to them as an operator.',
  },
  UserIdentity: {
    issuer: 'Address of the identity provider, exactly as its tokens name it.',
    subject: 'Account at the provider, as its tokens name it.',
  },
  UserPassword: { new_password: 'At most 1,024 bytes.' },
  Webhook: {
    name: 'Name in lists.',
    description: 'What the webhook is for.',
    url: ['URL', 'Address that events are sent to.'],
    events: 'Names of events, or beginnings of names with a star. One of them must match.',
    active: 'Whether events are sent. Events that occur meanwhile are not sent later.',
    policy_id: ['Policy', 'Must allow an event for it to be sent.'],
  },
  WebhookDeliveries: {
    status: 'Failed deliveries without a choice.',
    event_type: 'Name of the event.',
    from: 'Deliveries made at this time or later.',
    to: 'Deliveries made at this time or before.',
  },
  WebhookSecret: { overlap_seconds: ['Both secrets sign for seconds', 'Without a number, the old one ends now.'] },
  Workflow: workflow,
  Knowledge: {
    limit: ['Number of results'],
    document_paths: ['Folders', 'Folders or paths of documents to search.'],
    memory_store_ids: ['Memory stores', 'Facts to search.'],
    actor_id: ['End user', 'End user whose facts are searched too.'],
    tags: 'Tags that results must have, as JSON.',
    metadata: 'Values that documents must have, as JSON.',
    include_documents: 'Whether documents are searched.',
    include_memories: 'Whether facts are searched.',
    min_similarity: 'Least similarity of results that are found only by meaning, from 0 to 1.',
    rrf_k: ['Weight of ranks', 'Larger numbers make the first ranks less important.'],
    recency_half_life_days: ['Half-life in days', 'Age at which a fact counts half. 0: age does not matter.'],
    max_chunks_per_document: ['Results of a document', 'Largest number.'],
    neighbors: 'Number of pieces before and after each result that are shown with it.',
    rerank: 'Tool that orders the first results again, as JSON.',
  },
}
