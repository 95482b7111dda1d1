import assert from 'node:assert/strict'
import fs, { openAsBlob } from 'node:fs'
import http, { type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { isMusterError, Muster, type NoAnswer, NotFound, WorkFailed, WorkWaits } from '../../client/dist/index.js'
import { type SessionApp, startSessionApp } from '../conversation/session-support.ts'
import { forSuite } from '../support/suite.ts'

const tokenOf = (app: SessionApp): string => app.key.token as string

describe('the client with the service', function () {
  this.timeout(120_000)
  const app = forSuite(startSessionApp)
  let muster: Muster
  before(async () => {
    muster = new Muster({ baseUrl: app.url, token: tokenOf(app), maxRetries: 2 })
  })

  it('creates, gets, updates, lists, tags and deletes, with the names of the wire', async () => {
    const { data, status, etag, requestId } = await muster.actors.create({ name: 'Ann' }).withResponse()
    assert.deepEqual([status, data.name], [201, 'Ann'])
    assert.ok(requestId)
    assert.ok(etag === null || etag.length > 0)
    const read = await muster.actors.get({ actor_id: data.id }).withResponse()
    assert.deepEqual(read.data, data)
    const changed = await muster.actors.update({ actor_id: data.id, name: 'Ben' }, { ifMatch: read.etag as string })
    assert.equal(changed.name, 'Ben')
    await assert.rejects(
      async () => await muster.actors.update({ actor_id: data.id, name: 'Eve' }, { ifMatch: read.etag as string }),
      error => isMusterError(error, 'PRECONDITION_FAILED') && error.status === 412,
    )
    assert.deepEqual(await muster.actors.tags.merge({ actor_id: data.id, team: 'desk' }), { team: 'desk' })
    const page = await muster.actors.list({ name: 'Ben', tags: { team: 'desk' } }).page()
    assert.deepEqual([page.total, page.data[0].id], [1, data.id])
    assert.equal(await muster.actors.delete({ actor_id: data.id }), undefined)
    await assert.rejects(async () => await muster.actors.get({ actor_id: data.id }), NotFound)
  })

  it('walks a list page by page, each item once while others are created', async () => {
    const { id } = await muster.datasets.create({ name: 'many' })
    const added = { input: [{ role: 'user' as const, content: 'x' }] }
    const file = new TextEncoder().encode(`${JSON.stringify(added)}\n`.repeat(120))
    await muster.datasets.items.importFile({ dataset_id: id, content_type: 'application/x-ndjson', file })
    const list = muster.datasets.items.list({ dataset_id: id, limit: 50 })
    assert.equal(list.total, null)
    const seen: string[] = []
    for await (const item of list) {
      seen.push(item.id)
      if (seen.length === 10) await muster.datasets.items.create({ ...added, dataset_id: id })
    }
    assert.equal(new Set(seen).size, seen.length)
    assert.ok(seen.length >= 120, String(seen.length))
    assert.ok((list.total ?? 0) >= 120)
    assert.equal((await muster.datasets.items.list({ dataset_id: id }).all({ max: 7 })).length, 7)
    assert.deepEqual(await muster.datasets.items.list({ dataset_id: id }).all({ max: 0 }), [])
  })

  it('follows the cursor of a list that has one', async () => {
    const entries = await muster.activity.list({ limit: 1 }).all({ max: 3 })
    const page = await muster.activity.list({ limit: 3 }).page()
    assert.deepEqual(
      entries.map(({ id }) => id),
      page.data.map(({ id }) => id),
    )
  })

  it('sends the project of the client where an operation accepts one and the call has none', async () => {
    const other = await app.project()
    const admin = new Muster({ baseUrl: app.url, token: app.admin.token as string, project: other.id })
    const actor = await admin.actors.create({ name: 'in the other' })
    assert.equal(actor.project_id, other.id)
    assert.equal(
      (await admin.actors.list().all()).every(({ project_id }) => project_id === other.id),
      true,
    )
    assert.equal(
      (await admin.actors.list({ project_id: app.projectId }).all()).some(({ id }) => id === actor.id),
      false,
    )
  })

  it('refuses missing and malformed path parameters before a request', async () => {
    for (const actor_id of [undefined, '', '.', '..'])
      await assert.rejects(async () => await muster.actors.get({ actor_id: actor_id as string }), TypeError)
    // A slash stays within its segment.
    await assert.rejects(async () => await muster.actors.get({ actor_id: '../agents' }), NotFound)
  })

  it('types the details of errors whose fields are known', async () => {
    const error = await muster.agents.create({ name: '' } as any).catch(each => each)
    assert.ok(isMusterError(error, 'VALIDATION_FAILED'))
    assert.ok(error.meta.problems.some(({ path }) => path === 'name'))
    assert.deepEqual([error.status, error.name], [400, 'Invalid'])
    assert.ok(error.hint.length > 0 && error.docsUrl.includes('VALIDATION_FAILED') && error.requestId)
  })

  describe('uploads and downloads', () => {
    it('sends bytes, blobs, files of the disk and streams, and downloads each', async () => {
      const content = 'a line\n'.repeat(20_000)
      const bytes = new TextEncoder().encode(content)
      const path = `${import.meta.dirname}/upload-${process.pid}.txt`
      fs.writeFileSync(path, content)
      try {
        const sources = {
          'a.txt': bytes,
          'b.txt': new Blob([content]),
          'c.txt': await openAsBlob(path),
          'd".txt': new Response(content).body as ReadableStream<Uint8Array>,
        }
        for (const [filename, file] of Object.entries(sources)) {
          const made = await muster.files.upload({ file, filename, prefix: '/client', metadata: { from: filename } })
          assert.deepEqual([made.size, made.metadata], [bytes.length, { from: filename }], filename)
          const download = await muster.files.download({ file_id: made.id })
          assert.deepEqual([download.size, download.filename], [bytes.length, filename])
          assert.equal(await download.text(), content)
        }
      } finally {
        fs.rmSync(path)
      }
    })

    it('reads a part of a file, and leaves a download', async () => {
      const file = await muster.files.upload({ file: new TextEncoder().encode('0123456789'), filename: 'digits' })
      const { data, status } = await muster.files
        .download({ file_id: file.id }, { headers: { Range: 'bytes=2-4' } })
        .withResponse()
      assert.deepEqual([status, await data.text()], [206, '234'])
      const left = await muster.files.download({ file_id: file.id })
      await left.stream().cancel()
    })

    it('imports lines and reads an export line by line', async () => {
      const { id } = await muster.datasets.create({ name: 'lines' })
      const lines = ['hello', 'Grüße'].map(content => JSON.stringify({ input: [{ role: 'user', content }] }))
      await muster.datasets.items.importFile({
        dataset_id: id,
        content_type: 'application/x-ndjson',
        file: new TextEncoder().encode(lines.join('\n')),
      })
      const download = await muster.datasets.items.export({ dataset_id: id, format: 'jsonl' })
      const read: unknown[] = []
      for await (const line of download.lines()) read.push(line.input)
      assert.deepEqual(read.sort(), lines.map(line => JSON.parse(line).input).sort())
    })
  })

  describe('turns', () => {
    const ask = { messages: [{ role: 'user' as const, content: 'Say hello' }] }

    it('stream typed events, their text, and the result', async () => {
      const agent_id = app.agentId
      const turn = muster.agents.generateStream({ agent_id, ...ask })
      let text = ''
      const names: string[] = []
      for await (const event of turn) {
        names.push(event.event)
        if (event.event === 'delta') text += event.data.choices[0].delta.content ?? ''
      }
      const result = await turn.result()
      assert.deepEqual([names[0], names.at(-1), result.status], ['started', 'completed', 'completed'])
      assert.equal((result.output as any).content, text)
      let pieces = ''
      const again = muster.agents.generateStream({ agent_id, ...ask })
      for await (const piece of again.text()) pieces += piece
      assert.equal(pieces, text)
      await assert.rejects(async () => {
        for await (const _ of again);
      }, TypeError)
      const watched = muster.generations.stream({ generation_id: result.id })
      assert.equal((await watched.result()).id, result.id)
    })

    it('are refused with stream: true where the result is expected, before a request', async () => {
      let count = 0
      const counting = new Muster({
        baseUrl: app.url,
        token: tokenOf(app),
        fetch: (...args) => {
          count++
          return fetch(...args)
        },
      })
      const untyped = { agent_id: 'agent_1', ...ask, stream: true } as any
      await assert.rejects(async () => await counting.agents.generate(untyped), /stream is no argument/)
      assert.equal(count, 0)
    })

    it('settle: polled until done, failed with their code, waiting for tool outputs', async () => {
      const agent_id = app.agentId
      const settled = await muster.agents.generate({ agent_id, ...ask }).settled({ timeoutMs: 60_000 })
      assert.equal(settled.status, 'completed')
      const { agentId: failing } = await app.scripted([{ reply: { error: { status: 400 } } }])
      const failure = await muster.agents
        .generate({ agent_id: failing, ...ask })
        .settled()
        .catch(error => error)
      assert.ok(failure instanceof WorkFailed, String(failure))
      assert.ok(failure.code)
      assert.ok(!(failure instanceof WorkWaits))
    })

    it('are cancelled by cancel(), not by leaving the stream', async () => {
      const { agentId: agent_id } = await app.scripted([{ reply: { text: 'late', gate: 'client-late' } }])
      const left = muster.agents.generateStream({ agent_id, ...ask })
      let id = ''
      for await (const event of left) {
        if (event.event === 'started') id = event.data.generation_id as string
        break
      }
      await assert.rejects(left.result(), TypeError)
      assert.match((await muster.generations.get({ generation_id: id })).status, /pending|in_progress/)
      await left.cancel()
      const { status } = await muster.generations.get({ generation_id: id })
      assert.ok(['failed', 'in_progress'].includes(status), status)
    })
  })

  it('creates once when the answer of a create is lost, and returns the record', async () => {
    let lost = 0
    const server = http.createServer((req: IncomingMessage, res: ServerResponse) => {
      const target = new URL(req.url as string, app.url)
      const upstream = http.request(target, { method: req.method, headers: req.headers }, answer => {
        const isLost = req.method === 'POST' && lost++ === 0
        if (!isLost) {
          res.writeHead(answer.statusCode as number, answer.rawHeaders)
          return void answer.pipe(res)
        }
        answer.resume().once('end', () => res.destroy())
      })
      req.pipe(upstream)
    })
    await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
    const baseUrl = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
    try {
      const through = new Muster({ baseUrl, token: tokenOf(app) })
      const actor = await through.actors.create({ name: 'created once' })
      assert.equal(lost, 2)
      const found = await muster.actors.list({ name: 'created once' }).all()
      assert.deepEqual(
        found.map(({ id }) => id),
        [actor.id],
      )
      lost = 0
      const single = new Muster({ baseUrl, token: tokenOf(app), maxRetries: 0 })
      await assert.rejects(
        async () => await single.actors.create({ name: 'not repeated' }),
        (error: NoAnswer) => error.reason === 'network',
      )
    } finally {
      server.close()
      server.closeAllConnections()
    }
  })
})
