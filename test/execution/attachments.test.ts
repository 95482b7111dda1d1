import assert from 'node:assert/strict'
import { newId } from '#core/base/ids.ts'
import { client } from '../local/double/client.ts'
import { type Client, eventually, startApp } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { startAgentApp } from './fixtures.ts'

const PNG = Buffer.from(
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==',
  'base64',
)

describe('files in messages', () => {
  const app = forSuite(() =>
    startAgentApp({
      actions: ['agents:*', 'files:*', 'generations:*', 'traces:*'],
      inProcess: true,
      env: { FILES_INLINE_MAX_BYTES: '4096' },
    }),
  )
  const double = forSuite(() => client(app.double))

  let counter = 0
  const upload = async (content_type: string, bytes: Buffer = PNG, key: Client = app.key) =>
    (
      await createdBy(key, '/files/upload/base64', {
        filename: `file-${++counter}`,
        content_type,
        content: bytes.toString('base64'),
      })
    ).id as string
  const generate = (content: unknown, agent = app.agentId, query = '?wait=true') =>
    app.key.post(`/agents/${agent}/generate${query}`, { messages: [{ role: 'user', content }] })
  const file = (file_id: string) => ({ type: 'file', file_id })
  const text = (value: string) => ({ type: 'text', text: value })
  const lane = async (name: string, rules: object[] = []) => {
    await double.put(name, { rules } as never)
    return app.agent({ model: `${name}/m` })
  }

  it('reach the model as images, sounds and PDF, in the order of the parts', async () => {
    const agent = await lane('parts')
    const bytes = Buffer.from('%PDF-1.4 nothing')
    const [image, pdf, sound] = [
      await upload('image/png; q=1'),
      await upload('application/pdf', bytes),
      await upload('audio/mpeg', bytes),
    ]
    const content = [text('What are these?'), file(image), file(pdf), file(sound), text('And again'), file(image)]
    const { status, body } = await generate(content, agent)
    assert.equal(status, 200, JSON.stringify(body))
    const [request] = await double.requests('parts')
    const picture = { type: 'image_url', image_url: { url: `data:image/png;base64,${PNG.toString('base64')}` } }
    const pdfData = `data:application/pdf;base64,${bytes.toString('base64')}`
    assert.deepEqual(request.body.messages.at(-1).content, [
      text('What are these?'),
      picture,
      { type: 'file', file: { filename: 'file-2', file_data: pdfData } },
      { type: 'input_audio', input_audio: { data: bytes.toString('base64'), format: 'mp3' } },
      text('And again'),
      picture,
    ])
    const transcript = (await app.key.get(`/generations/${body.id}/transcript`)).body
    assert.deepEqual(transcript.input, [{ role: 'user', content }])
  })

  it('are read once for all steps of a turn', async () => {
    const agent = await lane('steps', [
      { replies: [{ tool_calls: [{ name: 'nothing', args: {} }] }, { text: 'seen' }] },
    ])
    const image = await upload('image/png')
    const from = app.statements.length
    const { body } = await generate([file(image)], agent)
    assert.equal(body.output.content, 'seen')
    const requests = await double.requests('steps')
    assert.equal(requests.length, 2)
    for (const request of requests) assert.equal(request.body.messages[0].content[0].type, 'image_url')
    // One read when the request is checked, one when the model is first called.
    const reads = app.statements.slice(from).filter(statement => /from files t\s+where t.id = any/.test(statement))
    assert.equal(reads.length, 2)
  })

  it('are refused when they cannot be given to a model, and nothing is made', async () => {
    const count = async () => (await app.key.get('/generations')).body.total
    const image = await upload('image/png')
    const other = await app.project()
    const foreign = await upload('image/png', PNG, other.key)
    const empty = (await app.key.post('/files', { filename: 'declared', content_type: 'image/png', size: 5 })).body.id
    const large = await upload('image/png', Buffer.alloc(3000))
    const larger = await upload('image/png', Buffer.alloc(3001))
    const before = await count()
    const cases: [unknown, string, string?][] = [
      [[file(newId('file'))], 'FILE_NOT_FOUND'],
      [[file(foreign)], 'FILE_NOT_FOUND'],
      [[file('x')], 'FILE_NOT_FOUND'],
      [[file(image), file(await upload('text/plain'))], 'VALIDATION_FAILED', 'messages[0].content[1].file_id'],
      [
        [file(await upload('image'.padEnd(9, 'x').concat('/png')))],
        'VALIDATION_FAILED',
        'messages[0].content[0].file_id',
      ],
      [[file(empty)], 'VALIDATION_FAILED', 'messages[0].content[0].file_id'],
      [[file(large), file(larger)], 'VALIDATION_FAILED', 'messages'],
      [[file(large), file(large)], 'VALIDATION_FAILED', 'messages'],
      [[], 'VALIDATION_FAILED', 'messages[0].content'],
      [Array(33).fill(text('x')), 'VALIDATION_FAILED', 'messages[0].content'],
      [[{ type: 'image', file_id: image }], 'VALIDATION_FAILED', 'messages[0].content'],
      [[{ ...file(image), detail: 'low' }], 'VALIDATION_FAILED', 'messages[0].content'],
      [[{ type: 'file' }], 'VALIDATION_FAILED', 'messages[0].content'],
      [{ type: 'file', file_id: image }, 'VALIDATION_FAILED', 'messages[0].content'],
    ]
    for (const [content, code, path] of cases) {
      const { status, body } = await generate(content)
      assert.deepEqual([status, body.error?.code], [400, code], JSON.stringify(body))
      if (path) assert.ok(body.error.meta.problems[0].path.startsWith(path), JSON.stringify(body.error.meta))
    }
    const assistant = await app.key.post(`/agents/${app.agentId}/generate`, {
      messages: [{ role: 'assistant', content: [file(image)] }],
    })
    assert.deepEqual([assistant.status, assistant.body.error.meta.problems[0].path], [400, 'messages[0].content'])
    const system = await app.key.post(`/agents/${app.agentId}/generate`, {
      messages: [{ role: 'system', content: [text('x')] }],
    })
    assert.equal(system.body.error.code, 'SYSTEM_MESSAGE_NOT_ALLOWED')
    assert.equal(await count(), before)
    assert.equal((await generate([file(large)])).status, 200)
  })

  it('need the right to download them', async () => {
    const mine = await upload('image/png')
    const other = await upload('image/png')
    const allow = (action: string, resource: string) => ({
      statement: [{ effect: 'Allow', action: [action], resource: [resource] }],
    })
    const user = await app.user(undefined, [
      allow('agents:CreateAgentGeneration', `srn:${app.projectId}:agent:*`),
      allow('files:DownloadFile', `srn:${app.projectId}:file:${mine}`),
    ])
    const ask = (id: string) =>
      user.post(`/agents/${app.agentId}/generate?wait=true`, { messages: [{ role: 'user', content: [file(id)] }] })
    assert.equal((await ask(mine)).status, 200)
    const refused = await ask(other)
    assert.deepEqual([refused.status, refused.body.error.code], [403, 'FORBIDDEN'])
    // Nor does a turn of another caller help to them.
    const agent = await lane('refused', [{ reply: { error: { status: 400 } } }])
    const retried = async (id: string) => {
      const { generation_id } = (await generate([file(id)], agent)).body.error.meta
      return (await user.post(`/generations/${generation_id}/retry`)).status
    }
    assert.deepEqual([await retried(mine), await retried(other)], [202, 403])
  })

  it('go along into a retry', async () => {
    const agent = await lane('again', [{ replies: [{ error: { status: 400 } }, { text: 'seen' }] }])
    const image = await upload('image/png')
    const failed = await generate([file(image)], agent)
    assert.equal(failed.status, 502)
    const { generation_id } = failed.body.error.meta
    const again = await app.key.post(`/generations/${generation_id}/retry?wait=true`)
    assert.deepEqual([again.status, again.body.output.content], [200, 'seen'])
    const requests = await double.requests('again')
    assert.deepEqual(requests[1].body.messages, requests[0].body.messages)
    assert.equal(requests[1].body.messages[0].content[0].type, 'image_url')
  })

  it('fail a turn when they are larger than a worker sends', async () => {
    const web = await startAgentApp({ workers: [] })
    const image = await upload('image/png', Buffer.alloc(3000), web.key)
    const made = await web.key.post(`/agents/${web.agentId}/generate`, {
      messages: [{ role: 'user', content: [file(image), file(image)] }],
    })
    assert.equal(made.status, 202)
    const env = { FILES_INLINE_MAX_BYTES: '4096' }
    const worker = await startApp({ databaseUrl: web.databaseUrl, workers: ['generation'], env })
    try {
      const failed = await eventually(async () => {
        const { body } = await web.key.get(`/generations/${made.body.generation_id}`)
        return body.status === 'failed' ? body : null
      })
      assert.deepEqual([failed.error.code, failed.error.meta.reason], ['GENERATION_FAILED', 'files_too_large'])
    } finally {
      await worker.close()
      await web.close()
    }
  })

  it('fail a turn when they are gone before it starts', async () => {
    const web = await startAgentApp({ workers: [] })
    const image = await upload('image/png', PNG, web.key)
    const made = await web.key.post(`/agents/${web.agentId}/generate`, {
      messages: [{ role: 'user', content: [file(image)] }],
    })
    assert.equal(made.status, 202)
    assert.equal((await web.key.delete(`/files/${image}`)).status, 204)
    const worker = await startApp({ databaseUrl: web.databaseUrl, workers: ['generation'] })
    try {
      const failed = await eventually(async () => {
        const { body } = await web.key.get(`/generations/${made.body.generation_id}`)
        return body.status === 'failed' ? body : null
      })
      assert.deepEqual([failed.error.code, failed.error.meta], ['FILE_NOT_FOUND', { id: image }])
    } finally {
      await worker.close()
      await web.close()
    }
  })
})
