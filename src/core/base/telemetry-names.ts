/**
 * Names of the attributes of spans. `gen_ai.*` and `mcp.*` follow release v0.1.0 of the GenAI conventions of OpenTelemetry
 * (open-telemetry/semantic-conventions-genai), in which all of them are in development; the others are stable names of the
 * general conventions. test/core/telemetry-names.test.ts compares them with that release; a change is a release note.
 */
export const GEN_AI_CONVENTIONS = 'v0.1.0'

/** Attributes of the conventions. */
export const ATTRIBUTE = {
  operation: 'gen_ai.operation.name',
  provider: 'gen_ai.provider.name',
  agentName: 'gen_ai.agent.name',
  agentVersion: 'gen_ai.agent.version',
  conversation: 'gen_ai.conversation.id',
  outputType: 'gen_ai.output.type',
  requestModel: 'gen_ai.request.model',
  requestStream: 'gen_ai.request.stream',
  temperature: 'gen_ai.request.temperature',
  topP: 'gen_ai.request.top_p',
  maxTokens: 'gen_ai.request.max_tokens',
  responseModel: 'gen_ai.response.model',
  responseId: 'gen_ai.response.id',
  finishReasons: 'gen_ai.response.finish_reasons',
  firstChunk: 'gen_ai.response.time_to_first_chunk',
  inputTokens: 'gen_ai.usage.input_tokens',
  outputTokens: 'gen_ai.usage.output_tokens',
  reasoningTokens: 'gen_ai.usage.reasoning.output_tokens',
  cacheReadTokens: 'gen_ai.usage.cache_read.input_tokens',
  cacheWriteTokens: 'gen_ai.usage.cache_write.input_tokens',
  toolName: 'gen_ai.tool.name',
  toolCall: 'gen_ai.tool.call.id',
  toolType: 'gen_ai.tool.type',
  dataSource: 'gen_ai.data_source.id',
  retrieved: 'gen_ai.retrieval.top_k',
  memoryStore: 'gen_ai.memory.store.id',
  memories: 'gen_ai.memory.record.count',
  dimensions: 'gen_ai.embeddings.dimension.count',
  evaluationName: 'gen_ai.evaluation.name',
  evaluationScore: 'gen_ai.evaluation.score.value',
  evaluationLabel: 'gen_ai.evaluation.score.label',
  mcpMethod: 'mcp.method.name',
  mcpVersion: 'mcp.protocol.version',
  rpcRequest: 'jsonrpc.request.id',
  rpcStatus: 'rpc.response.status_code',
  error: 'error.type',
  method: 'http.request.method',
  route: 'http.route',
  status: 'http.response.status_code',
  address: 'server.address',
  port: 'server.port',
  session: 'session.id',
  user: 'user.id',
  inputMessages: 'gen_ai.input.messages',
  outputMessages: 'gen_ai.output.messages',
  database: 'db.system.name',
  statement: 'db.query.summary',
  rows: 'db.response.returned_rows',
} as const

/** Names of the conventions before (v1.41.1), which receivers still read and which end with release 0.3. */
export const EARLIER = {
  cacheWriteTokens: 'gen_ai.usage.cache_creation.input_tokens',
} as const

/** Attributes of Muster. */
export const MUSTER = {
  project: 'muster.project_id',
  request: 'muster.request_id',
  operation: 'muster.operation',
  surface: 'muster.surface',
  principal: 'muster.principal_type',
  agent: 'muster.agent_id',
  generation: 'muster.generation_id',
  attempt: 'muster.attempt',
  queueWait: 'muster.queue_wait_ms',
  cost: 'muster.cost_usd',
  outcome: 'muster.outcome',
  toolKind: 'muster.tool_kind',
  verdict: 'muster.guardrail_verdict',
  run: 'muster.run_id',
  node: 'muster.node_id',
  version: 'muster.version',
  event: 'muster.event',
  delivery: 'muster.delivery_id',
  document: 'muster.document_id',
  stage: 'muster.stage',
  pages: 'muster.pages',
  chunks: 'muster.chunks',
  bytes: 'muster.bytes',
  trigger: 'muster.trigger_id',
  firing: 'muster.firing_id',
  task: 'muster.task_id',
  dispatch: 'muster.dispatch_kind',
  evalRun: 'muster.eval_run_id',
  evalResult: 'muster.eval_result_id',
  hits: 'muster.hits',
  degraded: 'muster.degraded_channels',
  batch: 'muster.batch_size',
  prepared: 'muster.statement',
} as const

/** Values of `gen_ai.operation.name`. */
export const OPERATION = {
  agent: 'invoke_agent',
  chat: 'chat',
  tool: 'execute_tool',
  embeddings: 'embeddings',
  retrieval: 'retrieval',
  searchMemory: 'search_memory',
  upsertMemory: 'upsert_memory',
} as const

/** Event of a score. */
export const EVALUATION_EVENT = 'gen_ai.evaluation.result'

/** Values of `gen_ai.provider.name` by provider type, where they differ. */
const PROVIDERS: Readonly<Record<string, string>> = {
  google: 'gcp.gemini',
  vertex: 'gcp.vertex_ai',
  bedrock: 'aws.bedrock',
  azure: 'azure.ai.openai',
  xai: 'x_ai',
}

/** Returns the value of `gen_ai.provider.name` of a provider type. */
export const providerName = (type: string): string => PROVIDERS[type] ?? type
