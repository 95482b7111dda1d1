import assert from 'node:assert/strict'
import { eventually, startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { startMcpServer } from './mcp-target.ts'
import { made, secretOf, startTarget } from './tool-target.ts'

describe('tools in workers', () => {
  const target = forSuite(startTarget)
  const app = forSuite(() => startApp({ workers: ['ingestion'] }))
  const key = forSuite(
    async () =>
      (
        await app.projectWith([
          'tools:*',
          'secrets:*',
          'files:*',
          'documents:*',
          'ingestion-rules:*',
          'actors:ListActors',
        ])
      ).key,
  )

  let files = 0
  const ingested = async (content_type: string) => {
    const content = Buffer.from('the bytes').toString('base64')
    const file = await key.post('/files/upload/base64', {
      content,
      filename: `file-${++files}`,
      content_type,
    })
    assert.equal(file.status, 201, JSON.stringify(file.body))
    const { body } = await key.post('/documents/ingest', { file_id: file.body.id })
    return eventually(async () => {
      const { body: document } = await key.get(`/documents/${body.id}`)
      return ['ready', 'failed'].includes(document.status) && document
    })
  }

  it('convert files, under the key of the attempt and with their secrets', async () => {
    if (process.env.TEST_IN_PROCESS !== 'true') assert.ok(app.worker)
    const secret = await secretOf(key, 'the converter key')
    const tool = await made(key, {
      execute: { url: `${target.url}/convert`, headers: { Authorization: `Bearer {{secret:${secret}}}` } },
      output_mapping: { cat: ['text of ', { var: 'input.file.filename' }, ': ', { var: 'output.ok' }] },
    })
    await key.post('/ingestion-rules', { content_type_glob: 'x/a', tool_id: tool.id })
    const document = await ingested('x/a')
    assert.deepEqual([document.status, document.content], ['ready', 'text of file-1: true'])
    const { headers, body } = target.last()
    assert.match(headers['idempotency-key'] as string, /^iat_/)
    assert.equal(headers.authorization, 'Bearer the converter key')
    assert.equal(Buffer.from(JSON.parse(body).file.data_base64, 'base64').toString(), 'the bytes')
    target.answer = (request, response) => response.writeHead(500).end(request.headers.authorization)
    const failed = await ingested('x/a')
    assert.equal(failed.error.code, 'CONVERTER_FAILED')
    assert.equal(failed.error.meta.cause.meta.tool_response_body, 'Bearer ***')
    assert.ok(!app.logs.join('').includes('the converter key'))
  })

  it('convert files by a tool of an MCP server', async () => {
    const server = await startMcpServer()
    try {
      const tool = await made(key, {
        type: 'mcp',
        mcp: { url: `${server.url}/stateful` },
        output_mapping: { cat: ['text of ', { var: 'output.file.filename' }] },
      })
      const rule = { tool_id: tool.id, content_type_glob: 'x/m' }
      assert.equal((await key.post('/ingestion-rules', rule)).body.error.code, 'INGESTION_RULE_VALIDATION_FAILED')
      assert.equal((await key.post('/ingestion-rules', { ...rule, action: 'echo' })).status, 201)
      assert.equal((await ingested('x/m')).content, `text of file-${files}`)
      const { requests } = await server.seen()
      const sent = requests.find(({ body }) => body?.method === 'tools/call')
      assert.match(sent?.headers['idempotency-key'] as string, /^iat_/)
    } finally {
      await server.close()
    }
  })

  it('carry out operations with the permissions of the caller who requested the work', async () => {
    const tool = await made(key, {
      type: 'platform',
      actions: ['list-actors', 'list-agents'],
      output_mapping: { cat: ['actors: ', { var: 'output.total' }] },
    })
    const rule = { tool_id: tool.id, preset_parameters: { limit: 1 } }
    await key.post('/ingestion-rules', { ...rule, content_type_glob: 'x/b', action: 'list-actors' })
    // The input of a converter holds the file, which no operation takes.
    const { meta } = (await ingested('x/b')).error
    assert.deepEqual([meta.cause.code, meta.cause.meta.problems[0].path], ['VALIDATION_FAILED', 'input.file'])
    const asked = await made(key, {
      type: 'pipeline',
      pipeline: {
        steps: [
          { id: 'actors', tool_id: tool.id, action: 'list-actors' },
          { id: 'agents', tool_id: tool.id, action: 'list-agents' },
        ],
      },
    })
    await key.post('/ingestion-rules', { tool_id: asked.id, content_type_glob: 'x/c' })
    const { cause } = (await ingested('x/c')).error.meta
    assert.deepEqual([cause.meta.step_id, cause.meta.cause.meta.tool_status_code], ['agents', 403])
    await key.patch(`/tools/${asked.id}`, { pipeline: { steps: asked.pipeline.steps.slice(0, 1) } })
    assert.equal((await ingested('x/c')).content, 'actors: 0')
  })
})
