import assert from 'node:assert/strict'
import {
  ATTRIBUTE,
  EVALUATION_EVENT,
  GEN_AI_CONVENTIONS,
  MUSTER,
  OPERATION,
  providerName,
} from '#core/base/telemetry-names.ts'
import { PROVIDER_TYPES } from '#execution/providers/model.ts'

/**
 * Names of open-telemetry/semantic-conventions-genai as of release v0.1.0: `model/gen-ai/registry.yaml`,
 * `model/gen-ai/spans.yaml`, `model/gen-ai/events.yaml` and `model/mcp/registry.yaml`, read on 2026-11-30.
 */
const RELEASE = {
  version: 'v0.1.0',
  attributes: [
    'gen_ai.agent.name',
    'gen_ai.agent.version',
    'gen_ai.conversation.id',
    'gen_ai.data_source.id',
    'gen_ai.evaluation.name',
    'gen_ai.evaluation.score.label',
    'gen_ai.evaluation.score.value',
    'gen_ai.operation.name',
    'gen_ai.output.type',
    'gen_ai.provider.name',
    'gen_ai.request.max_tokens',
    'gen_ai.request.model',
    'gen_ai.request.stream',
    'gen_ai.request.temperature',
    'gen_ai.request.top_p',
    'gen_ai.response.finish_reasons',
    'gen_ai.response.id',
    'gen_ai.response.model',
    'gen_ai.response.time_to_first_chunk',
    'gen_ai.tool.call.id',
    'gen_ai.tool.name',
    'gen_ai.tool.type',
    'gen_ai.usage.cache_creation.input_tokens',
    'gen_ai.usage.cache_read.input_tokens',
    'gen_ai.usage.input_tokens',
    'gen_ai.usage.output_tokens',
    'gen_ai.usage.reasoning.output_tokens',
    'mcp.method.name',
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

/** Names of open-telemetry/semantic-conventions v1.41.1 that spans have too; `session.id` and `user.id` are in development. */
const GENERAL = [
  'error.type',
  'http.request.method',
  'http.response.status_code',
  'http.route',
  'server.address',
  'server.port',
  'session.id',
]

/** Provider types that the conventions do not list, which are custom values. */
const CUSTOM = ['ollama', 'gateway', 'custom']

describe('names of spans', () => {
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
    for (const name of Object.values(MUSTER)) assert.match(name, /^muster\.[a-z_]+$/)
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
