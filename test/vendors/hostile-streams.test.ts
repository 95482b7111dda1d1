import assert from 'node:assert/strict'
import { ExactNumber } from '#core/base/exact-json.ts'
import { ResponseWatch, watchedFetch } from '#execution/providers/event-stream.ts'
import { markingFetch, parseModelArguments } from '#execution/providers/exact-arguments.ts'
import { processorMs } from '../support/event-loop.ts'

const ID = '2512292042121000001'

/** `fetch` whose response is an event stream of these pieces. */
const streaming =
  (pieces: Iterable<string>): typeof fetch =>
  async () =>
    new Response(ReadableStream.from([...pieces].map(piece => Buffer.from(piece))), {
      headers: { 'content-type': 'text/event-stream' },
    })

const textOf = async (fetched: typeof fetch): Promise<string> => (await fetched('http://vendor.example')).text()

const watched = async (pieces: Iterable<string>) => {
  const watch = new ResponseWatch({ isStreamed: true, body: null, idle: { ms: 60_000, onIdle() {} } })
  const text = await watch.run(() => textOf(watchedFetch(streaming(pieces))))
  return { text, hasEnded: watch.hasEnded }
}

describe('streams of hostile vendors', () => {
  it('cost time that grows with their length, however long a line is', async () => {
    const pieces = (start: string, piece: string) => [start, ...Array<string>(30_000).fill(piece.repeat(100))]
    assert.ok((await processorMs(() => watched(pieces('data:', ' ')))) < 3000)
    assert.ok((await processorMs(() => textOf(markingFetch(streaming(pieces('data: ', 'a')))))) < 3000)
  })

  it('are passed on whole in pieces of any size', async () => {
    const stream = `data: {"name":"a","input":{"id":1}}\r\n\r\n: ping\n\ndata:\n\ndata:  \r\ndata: ${'x'.repeat(700)}\n\nda`
    const expected = stream.replace('data:\n', '').replace('data:  \r\n', '')
    for (const size of [1, 3, 7, 64, 2000]) {
      const pieces = stream.match(new RegExp(`[^]{1,${size}}`, 'g')) as string[]
      assert.equal((await watched(pieces)).text, expected, `${size}`)
      assert.equal(await textOf(markingFetch(streaming(pieces))), stream, `${size}`)
    }
  })

  it('do not end by a text of the model', async () => {
    const quoted = `data: {"text":"Servers end with data: [DONE]${' '.repeat(25)}`
    assert.equal((await watched([quoted, '"}\n\n'])).hasEnded, false)
    for (const pieces of [['data: [DONE]\n\n'], ['data: {}\n\nda', 'ta: [DO', 'NE]\n\n']])
      assert.equal((await watched(pieces)).hasEnded, true)
  })

  it('have numbers and no texts that are taken for numbers', async () => {
    const input = { id: new ExactNumber(ID), text: '\u{e000}12\u{e000}', ['\u{e000}1\u{e000}']: '\u{e000}007\u{e000}' }
    const text = await textOf(markingFetch(streaming([`data: ${JSON.stringify({ name: 'a', input })}\n\n`])))
    const { input: parsed } = JSON.parse(text.slice('data: '.length))
    assert.equal(JSON.stringify(parseModelArguments(JSON.stringify(parsed))), JSON.stringify(input))
  })
})
