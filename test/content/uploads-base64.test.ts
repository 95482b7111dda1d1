import { strict as assert } from 'node:assert'
import { randomBytes } from 'node:crypto'
import { rawQuery } from '#core/db/sql.ts'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'
import { download, sendRaw } from './file-support.ts'

const INLINE = 300_000

describe('uploads as base64 in JSON, read as they arrive', () => {
  const app = forSuite(() =>
    startApp({ env: { FILES_INLINE_MAX_BYTES: String(INLINE), FILE_BLOB_CHUNK_BYTES: '65536' } }),
  )
  const key = forSuite(async () => (await app.project()).key)
  afterEach(async () => {
    const staged = await app.pool.any(rawQuery("select id from file_blobs where state = 'staging'"))
    assert.deepEqual(staged, [])
  })

  /** Sends a body in pieces of some bytes, each a chunk of HTTP's own, which the server reads one by one. */
  async function send(body: string, pieceBytes = body.length): Promise<{ status: number; body: any }> {
    const bytes = Buffer.from(body)
    const pieces: Buffer[] = []
    for (let at = 0; at < bytes.length; at += pieceBytes) pieces.push(bytes.subarray(at, at + pieceBytes))
    const headers = { 'content-type': 'application/json', 'transfer-encoding': 'chunked' }
    const answer = await sendRaw(app.url, { path: '/files/upload/base64', token: key.token, headers, pieces })
    assert.ok('status' in answer, String((answer as { error?: Error }).error))
    return answer
  }

  it('finds the content wherever it is and however it is written', async () => {
    const bytes = Buffer.from([0xfb, 0xff, 0xbf, 0x3e, 0x00, 0x10])
    const text = bytes.toString('base64')
    const escaped = [...text].map(digit => `\\u${digit.charCodeAt(0).toString(16).padStart(4, '0')}`).join('')
    const fields = '"metadata":{"content":"AAAA","a":["content",{"content":"BBBB"},"}"]},"tags":{"k\\"":"v\\\\"}'
    const bodies = [
      `{"content":"${text}",${fields}}`,
      `{${fields},"content":"${text}"}`,
      ` { "tags" : {"k\\"":"v\\\\"} , "content" : "${text}" , ${fields.split(',"tags"')[0]} } `,
      `{"c\\u006fntent":"${text}",${fields}}`,
      `{${fields},"content":"${escaped}"}`,
      `{${fields},"content":"${[...text].map(digit => `${digit === '/' ? '\\/' : digit}\\r\\n`).join('')}"}`,
      `\ufeff{${fields},"content":"${text}"}`,
    ]
    for (const body of bodies)
      for (const pieceBytes of [1, 2, 5, 7, body.length]) {
        const made = await send(body, pieceBytes)
        assert.equal(made.status, 201, `${body} by ${pieceBytes}: ${JSON.stringify(made.body)}`)
        assert.deepEqual(made.body.metadata, { content: 'AAAA', a: ['content', { content: 'BBBB' }, '}'] })
        assert.deepEqual(made.body.tags, { 'k"': 'v\\' })
        assert.deepEqual((await download(app.url, key.token, made.body.id)).bytes, bytes)
      }
  })

  it('gives the bytes back whatever the pieces were', async () => {
    const bytes = randomBytes(INLINE)
    for (const pieceBytes of [1021, 65_536, 1_000_000]) {
      const made = await send(`{"content":"${bytes.toString('base64')}"}`, pieceBytes)
      assert.equal(made.status, 201)
      assert.ok((await download(app.url, key.token, made.body.id)).bytes.equals(bytes))
    }
  })

  it('refuses invalid JSON around or in the content, and stores nothing of it', async () => {
    const bodies = [
      '{"content":"eA=="',
      '{"content":"eA==',
      '{"content":"eA==\\',
      '{"content":"eA==\\u00',
      '{"content":"eA\\q=="}',
      '{"content":"eA\n=="}',
      '{"content" "eA=="}',
      '{"content":1 "eA=="}',
      '{"content":"eA=="}}',
      '{"content":"eA=="} x',
      '["content","eA=="]',
      '{"content":{"content":"eA=="}}',
      '{"content":"eA==","content":"eA=="}',
      '{"content":"eA==","content":null}',
      '{"content":"eA\\""}',
    ]
    for (const body of bodies)
      for (const pieceBytes of [1, body.length]) {
        const { status, body: answer } = await send(body, pieceBytes)
        assert.deepEqual([status, answer.error?.code], [400, 'VALIDATION_FAILED'], `${body} by ${pieceBytes}`)
      }
  })

  it('bounds depth and number of the other fields before it parses them', async () => {
    const nested = `${'{"a":'.repeat(65)}1${'}'.repeat(65)}`
    for (const [fields, problem] of [
      [`"metadata":${nested}`, 'TOO_DEEP'],
      [`"tags":[${'1,'.repeat(100_000)}1]`, 'TOO_MANY_VALUES'],
    ]) {
      const { status, body } = await send(`{"content":"eA==",${fields}}`)
      assert.deepEqual([status, body.error?.meta?.problems?.[0].code], [400, problem])
    }
    const text = await send(JSON.stringify({ content: 'eA==', metadata: nested }))
    assert.deepEqual([text.status, text.body.error?.code], [400, 'VALIDATION_FAILED'])
  })

  it('takes keys that objects inherit as plain keys', async () => {
    const metadata = '{"__proto__":{"polluted":true},"constructor":{"prototype":1},"n":-1.5e3}'
    const made = await send(`{"metadata":${metadata},"content":"eA=="}`, 3)
    assert.equal(made.status, 201, JSON.stringify(made.body))
    assert.deepEqual(Object.entries(made.body.metadata).sort(), Object.entries(JSON.parse(metadata)).sort())
    assert.equal(({} as { polluted?: boolean }).polluted, undefined)
    for (const body of [`{"__proto__":{"content":"eA=="}}`, `{"__proto__":"x","content":"eA=="}`]) {
      const { status, body: answer } = await send(body)
      assert.deepEqual([status, answer.error?.code], [400, 'VALIDATION_FAILED'], body)
    }
  })

  it('refuses padding in the middle, wherever a piece ends', async () => {
    for (const content of ['eA==eA==', 'eA=A', 'eA===', '=', 'AAAA==', 'A'])
      for (const pieceBytes of [1, 3, 100]) {
        const { status, body } = await send(JSON.stringify({ content }), pieceBytes)
        assert.deepEqual([status, body.error?.message], [400, 'content: must be base64'], `${content} by ${pieceBytes}`)
      }
  })

  it('bounds the content, the whole and the rest', async () => {
    const cases: [string, string][] = [
      ['the file', JSON.stringify({ content: Buffer.alloc(INLINE + 1).toString('base64') })],
      ['white space', JSON.stringify({ content: ' '.repeat(4_000_000) })],
      ['fields', JSON.stringify({ content: 'eA==', metadata: { a: 'x'.repeat(1_100_000) } })],
      ['keys', `{"${'x'.repeat(1_100_000)}":1}`],
    ]
    for (const [what, body] of cases) {
      const { status, body: answer } = await send(body, 65_536)
      assert.deepEqual([status, answer.error?.code], [413, 'REQUEST_REJECTED'], what)
    }
  })
})
