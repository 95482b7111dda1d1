import assert from 'node:assert/strict'
import { newId } from '#core/base/ids.ts'
import { modelInputs } from '#execution/providers/model-inputs.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'

describe('inputs of models', () => {
  const inputs = (provider: string, model: string, config: object | null = null) => {
    const found = modelInputs({ provider: provider as never, config: config as never }, model)
    return found && [...found].join(' ')
  }

  it('are known for common models, by the names of their vendors', () => {
    assert.equal(inputs('openai', 'gpt-3.5-turbo'), 'text')
    assert.equal(inputs('openai', 'o3-mini'), 'text')
    assert.equal(inputs('openai', 'gpt-5-mini'), 'text image pdf')
    assert.equal(inputs('gateway', 'anthropic/claude-sonnet-4-5'), 'text image pdf')
    assert.equal(inputs('bedrock', 'us.anthropic.claude-sonnet-4-5-v1:0'), 'text image pdf')
    assert.equal(inputs('vertex', 'gemini-2.5-pro'), 'text image pdf audio')
    assert.equal(inputs('groq', 'llama-3.3-70b-versatile'), 'text')
  })

  it('are unknown for other models and for servers of unknown models', () => {
    assert.equal(inputs('openai', 'new-model'), null)
    assert.equal(inputs('custom', 'gpt-3.5-turbo'), null)
    assert.equal(inputs('ollama', 'llama3'), null)
  })

  it('are taken from the provider where it declares them', () => {
    const config = { models: { 'gpt-3.5-turbo': { input: ['text', 'image'] } } }
    assert.equal(inputs('openai', 'gpt-3.5-turbo', config), 'text image')
    assert.equal(inputs('openai', 'gpt-4', config), 'text')
  })
})

describe('settings of media', () => {
  const app = forSuite(() => startAgentApp({ actions: ['agents:*', 'ai-providers:*', 'model-routes:*'], workers: [] }))

  it('of providers are validated', async () => {
    const provider = (config: object) =>
      app.key.post('/ai-providers', {
        name: newId('aip'),
        provider: 'custom',
        base_url: `${app.double.url}/v1`,
        default_model: 'double-1',
        config,
      })
    const made = await provider({ models: { 'double-1': { input: ['text', 'image'] } } })
    assert.deepEqual(made.body.config, { models: { 'double-1': { input: ['text', 'image'] } } })
    for (const models of [[], 'text', { m: {} }, { m: { input: [] } }, { m: { input: ['video'] } }]) {
      const { status, body } = await provider({ models })
      assert.deepEqual([status, body.error?.code], [400, 'VALIDATION_FAILED'], JSON.stringify(models))
      assert.match(body.error.meta.problems[0].path, /^config\.models/)
    }
  })

  it('of agents are validated and versioned', async () => {
    const patch = (media: unknown) => app.key.patch(`/agents/${app.agentId}`, { media })
    const refused: object[] = [
      { accept: [] },
      { accept: ['images'] },
      { fallback: 'skip' },
      { fallback: 'describe' },
      { history_turns: 0 },
      { max_parts_per_turn: 65 },
      { unknown: true },
    ]
    for (const media of refused) {
      const { status, body } = await patch(media)
      assert.deepEqual([status, body.error?.code], [400, 'VALIDATION_FAILED'], JSON.stringify(media))
    }
    const missing = await patch({ fallback: 'describe', describe_model_route_id: newId('route') })
    assert.deepEqual([missing.status, missing.body.error.code], [400, 'MODEL_ROUTE_NOT_FOUND'])
    const route = await app.key.post('/model-routes', {
      name: newId('route'),
      targets: [{ ai_provider_id: app.providerId, model: 'double-1' }],
    })
    const media = {
      fallback: 'describe',
      describe_model_route_id: route.body.id,
      accept: ['image/*', 'application/pdf'],
    }
    const { body } = await patch(media)
    assert.deepEqual([body.media, body.version], [media, 2])
    const versions = (await app.key.get(`/agents/${app.agentId}/versions`)).body.data
    assert.deepEqual(
      versions.map(({ config }: { config: { media: unknown } }) => config.media),
      [media, null],
    )
    // The agent does not depend on the route.
    assert.equal((await app.key.delete(`/model-routes/${route.body.id}`)).status, 204)
    assert.equal((await app.key.patch(`/agents/${app.agentId}`, { name: 'renamed' })).status, 200)
  })
})
