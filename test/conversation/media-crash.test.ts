import assert from 'node:assert/strict'
import { newId } from '#core/base/ids.ts'
import { steadyWorkers } from '../support/hosts.ts'
import { pngHeader } from '../support/images.ts'
import { startProcess } from '../support/processes.ts'
import { expectStatus, type SessionApp, startSessionApp } from './session-support.ts'

type Json = Record<string, any>

const ENV = { GENERATION_LEASE_SECONDS: '2', CONVERSATION_SWEEP_SECONDS: '1', GENERATION_SWEEP_SECONDS: '1' }

describe('descriptions of files and killed workers', function () {
  this.timeout(60_000)
  let app: SessionApp
  const steady = steadyWorkers()
  before(async () => {
    const actions = ['agents', 'ai-providers', 'files', 'generations', 'model-routes', 'sessions', 'usage']
    app = await startSessionApp({ actions: actions.map(module => `${module}:*`), workers: [], env: ENV })
  })
  after(async () => {
    await steady.stop()
    await app?.close()
  })

  it('are kept and billed once; the turn continues', async () => {
    const gate = 'describing'
    const eyes = await app.scripted([{ replies: [{ text: 'lost', gate }, { text: 'A cat on a mat' }] }] as never[])
    const { model, ai_provider_id } = expectStatus(await app.key.get(`/agents/${eyes.agentId}`), 200)
    const targets = [{ ai_provider_id, model }]
    const route = expectStatus(await app.key.post('/model-routes', { name: newId('route'), targets }), 201)
    const media = { fallback: 'describe', describe_model_route_id: route.id }
    const { agentId, requests } = await app.scripted([{ reply: { text: 'Seen.' } }], { media })
    const { model: blind } = expectStatus(await app.key.get(`/agents/${agentId}`), 200)
    const provider = await app.key.post('/ai-providers', {
      name: newId('aip'),
      provider: 'custom',
      base_url: `${app.double.url}/v1`,
      default_model: blind,
      config: { models: { [blind]: { input: ['text'] } } },
    })
    const { id } = expectStatus(provider, 201)
    expectStatus(await app.key.patch(`/agents/${agentId}`, { ai_provider_id: id }), 200)
    const content = pngHeader(2, 2).toString('base64')
    const cat = { filename: 'cat.png', prefix: '/cats', content_type: 'image/png', content }
    const file = expectStatus(await app.key.post('/files/upload/base64', cat), 201)
    const session = await app.session({ agent_id: agentId, auto_generate: true })

    const killed = await startProcess('worker', app.databaseUrl, ENV, ['generation'])
    const parts = [{ type: 'image', file_id: file.id }]
    const { generation_id } = expectStatus(await app.key.post(`/sessions/${session.id}/messages`, { parts }), 201)
    await app.atGate(gate)
    await killed.kill('SIGKILL')
    // The next one is killed with the description stored, before the step of the turn is.
    const doomed = await startProcess('worker', app.databaseUrl, { ...ENV, FAULT_POINTS: 'after_model=kill' }, [
      'generation',
    ])
    assert.equal((await doomed.exited).signal, 'SIGKILL')
    await steady.start(app.databaseUrl, ENV, ['generation'])
    assert.equal((await app.settled(generation_id)).status, 'completed')

    assert.equal((await eyes.requests()).length, 2)
    const asked = (await requests()).map(({ body }: Json) => JSON.stringify(body.messages.at(-1).content))
    assert.equal(asked.length, 2)
    for (const each of asked) assert.match(each, /A cat on a mat/)
    const path = `/usage/events?agent_id=${agentId}&source=media_description`
    assert.equal(expectStatus(await app.key.get(path), 200).data.length, 1)
    assert.equal((await app.messages(session)).length, 2)
    await app.openGate(gate)
  })
})
