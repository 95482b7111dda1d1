import assert from 'node:assert/strict'
import { instrumentOf } from '#core/base/instruments.ts'
import {
  ATTRIBUTE,
  EARLIER,
  EVALUATION_EVENT,
  GEN_AI_CONVENTIONS,
  MUSTER,
  OPERATION,
  providerName,
} from '#core/base/telemetry-names.ts'
import { genAiMetrics } from '#execution/providers/metrics.ts'
import { PROVIDER_TYPES } from '#execution/providers/model.ts'

/**
 * Names of open-telemetry/semantic-conventions-genai as of release v0.1.0, read on 2026-11-30: metrics from
 * `docs/gen-ai/client-inference.md` at the tag v0.1.0; the others from `model/gen-ai/registry.yaml`, `model/gen-ai/events.yaml` and
 * `model/mcp/registry.yaml` of the main branch before the release, without templates of names, with the renaming of
 * `changelog.d/440.breaking.md` (`cache_creation` to `cache_write`, 2026-08-20).
 */
const RELEASE = {
  version: 'v0.1.0',
  attributes: `
    gen_ai.agent.description gen_ai.agent.id gen_ai.agent.name gen_ai.agent.version
    gen_ai.conversation.compacted gen_ai.conversation.id gen_ai.data_source.id gen_ai.embeddings.dimension.count
    gen_ai.evaluation.explanation gen_ai.evaluation.name gen_ai.evaluation.score.label gen_ai.evaluation.score.value
    gen_ai.input.messages gen_ai.main_agent.description gen_ai.main_agent.id gen_ai.main_agent.name
    gen_ai.memory.query.text gen_ai.memory.record.count gen_ai.memory.record.id gen_ai.memory.records gen_ai.memory.store.id
    gen_ai.operation.name gen_ai.output.messages gen_ai.output.type gen_ai.prompt.name gen_ai.prompt.version
    gen_ai.provider.name gen_ai.request.choice.count gen_ai.request.encoding_formats gen_ai.request.frequency_penalty
    gen_ai.request.max_tokens gen_ai.request.model gen_ai.request.presence_penalty gen_ai.request.previous_response.id
    gen_ai.request.reasoning.level gen_ai.request.seed gen_ai.request.stop_sequences gen_ai.request.stream
    gen_ai.request.stream_cursor gen_ai.request.temperature gen_ai.request.top_k gen_ai.request.top_p
    gen_ai.response.finish_reasons gen_ai.response.id gen_ai.response.model gen_ai.response.status
    gen_ai.response.time_to_first_chunk gen_ai.retrieval.documents gen_ai.retrieval.query.text gen_ai.retrieval.top_k
    gen_ai.skill.description gen_ai.skill.name gen_ai.skill.resource.name gen_ai.skill.source.uri
    gen_ai.system_instructions gen_ai.token.modality gen_ai.tool.call.arguments gen_ai.tool.call.id
    gen_ai.tool.call.result gen_ai.tool.definitions gen_ai.tool.description gen_ai.tool.name gen_ai.tool.type
    gen_ai.usage.audio.cache_read.input_tokens gen_ai.usage.audio.input_tokens gen_ai.usage.audio.output_tokens
    gen_ai.usage.cache_read.input_tokens gen_ai.usage.cache_write.input_tokens
    gen_ai.usage.image.cache_read.input_tokens gen_ai.usage.image.input_tokens gen_ai.usage.image.output_tokens
    gen_ai.usage.input_tokens gen_ai.usage.output_tokens gen_ai.usage.reasoning.output_tokens
    gen_ai.usage.text.cache_read.input_tokens gen_ai.usage.text.input_tokens gen_ai.usage.text.output_tokens
    mcp.method.name mcp.protocol.version mcp.resource.uri mcp.session.id
  `
    .trim()
    .split(/\s+/),
  metrics: [
    'gen_ai.client.inference.duration',
    'gen_ai.client.inference.operation.input_tokens',
    'gen_ai.client.inference.operation.output_tokens',
    'gen_ai.client.inference.time_per_output_chunk',
    'gen_ai.client.inference.time_to_first_chunk',
    'gen_ai.client.inference.usage.cache_read.input_tokens',
    'gen_ai.client.inference.usage.cache_write.input_tokens',
    'gen_ai.client.inference.usage.input_tokens',
    'gen_ai.client.inference.usage.output_tokens',
    'gen_ai.client.inference.usage.reasoning.output_tokens',
  ],
  operations: [
    'chat',
    'create_agent',
    'create_memory',
    'create_memory_store',
    'delete_memory',
    'delete_memory_store',
    'embeddings',
    'execute_tool',
    'fetch_response',
    'generate_content',
    'invoke_agent',
    'invoke_workflow',
    'plan',
    'retrieval',
    'search_memory',
    'text_completion',
    'update_memory',
    'upsert_memory',
  ],
  providers: [
    'anthropic',
    'aws.bedrock',
    'azure.ai.inference',
    'azure.ai.openai',
    'cohere',
    'deepseek',
    'gcp.gemini',
    'gcp.gen_ai',
    'gcp.vertex_ai',
    'groq',
    'ibm.watsonx.ai',
    'mistral_ai',
    'moonshot_ai',
    'openai',
    'perplexity',
    'x_ai',
  ],
  events: ['gen_ai.evaluation.result'],
}

/** Names of open-telemetry/semantic-conventions v1.41.1 that spans have too; names of sessions, users, JSON-RPC and rows are in development. */
const GENERAL = [
  'db.query.summary',
  'db.response.returned_rows',
  'db.system.name',
  'error.type',
  'http.request.method',
  'http.response.status_code',
  'http.route',
  'jsonrpc.request.id',
  'rpc.response.status_code',
  'server.address',
  'server.port',
  'session.id',
  'user.id',
]

/** Metrics of open-telemetry/semantic-conventions v1.41.0 (`docs/gen-ai/gen-ai-metrics.md`), which release 0.3 ends. */
const EARLIER_METRICS = [
  'gen_ai.client.operation.duration',
  'gen_ai.client.operation.time_to_first_chunk',
  'gen_ai.client.token.usage',
]

/** Provider types that the conventions do not list, which are custom values. */
const CUSTOM = ['ollama', 'gateway', 'custom']

describe('names of telemetry', () => {
  it('are names of the release of the conventions that the constants name', () => {
    assert.equal(GEN_AI_CONVENTIONS, RELEASE.version)
    assert.deepEqual(
      Object.values(ATTRIBUTE).filter(name => ![...RELEASE.attributes, ...GENERAL].includes(name)),
      [],
    )
    assert.deepEqual(
      Object.values(OPERATION).filter(name => !RELEASE.operations.includes(name)),
      [],
    )
    assert.ok(RELEASE.events.includes(EVALUATION_EVENT))
    assert.deepEqual(Object.values(EARLIER), ['gen_ai.usage.cache_creation.input_tokens'])
    for (const name of Object.values(MUSTER)) assert.match(name, /^muster\.[a-z_]+$/)
  })

  it('are, of metrics of model calls, of that release and of the conventions before', async () => {
    const declared = await Promise.all(genAiMetrics.map(async metric => instrumentOf((await metric.get()).name).name))
    assert.deepEqual(
      declared.filter(name => !RELEASE.metrics.includes(name)),
      EARLIER_METRICS,
    )
  })

  it('map every provider type to a value of the conventions, or keep it as a custom one', () => {
    const unknown = PROVIDER_TYPES.filter(type => !RELEASE.providers.includes(providerName(type)))
    assert.deepEqual(
      unknown.filter(type => !CUSTOM.includes(type)),
      [],
    )
    assert.equal(providerName('google'), 'gcp.gemini')
  })
})
