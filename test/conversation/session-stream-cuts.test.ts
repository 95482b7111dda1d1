import assert from 'node:assert/strict'
import http from 'node:http'
import { eventually } from '../support/app.ts'
import { type Frame, frameIn } from '../support/frames.ts'
import { random } from '../support/random.ts'
import { rounds } from '../support/rounds.ts'
import { forSuite } from '../support/suite.ts'
import { textOf } from './session-stream-support.ts'
import { startSessionApp } from './session-support.ts'

type Json = Record<string, any>

const SEEDS = rounds('STREAM_CUT_SEEDS', 80, 200)
const CONCURRENT = 8

/** A reader of bytes that cuts its connection after some of them, and continues after the last whole event. */
class CutReader {
  readonly frames: Frame[] = []
  readonly #url: URL
  readonly #token: string
  readonly #below: (bound: number) => number
  #done = false
  #request: http.ClientRequest | undefined
  cuts = 0

  constructor(url: string, token: string, below: (bound: number) => number) {
    this.#url = new URL(url)
    this.#token = token
    this.#below = below
  }

  last(): string | undefined {
    return this.frames.findLast(({ id }) => id !== undefined)?.id
  }

  async run(): Promise<void> {
    while (!this.#done) {
      await this.#read(this.#below(6) > 0, 1 + this.#below(900))
      this.cuts += 1
    }
  }

  /** Reads a number of bytes, also after the first event, and forgets the event in which they end. */
  #read(afterFirst: boolean, bytes: number): Promise<void> {
    return new Promise((resolve, reject) => {
      const after = this.last()
      let rest = ''
      let left = afterFirst ? Number.POSITIVE_INFINITY : bytes
      const headers = {
        authorization: `Bearer ${this.#token}`,
        ...(after === undefined ? {} : { 'last-event-id': after }),
      }
      const request = http.get(this.#url, { headers, agent: false }, response => {
        if (response.statusCode !== 200) reject(new Error(`status ${response.statusCode}`))
        response.setEncoding('latin1')
        response.on('data', (chunk: string) => {
          for (const byte of chunk) {
            if (left-- <= 0) break
            rest += byte
            if (!rest.endsWith('\n\n')) continue
            const frame = frameIn(rest.trimEnd())
            rest = ''
            // The first event repeats the position from which the stream continues.
            if (frame?.event === 'ready') left = Math.min(left, bytes)
            else if (frame) this.frames.push(frame)
          }
          if (left <= 0) request.destroy()
        })
        response.once('close', resolve)
        response.on('error', () => {})
      })
      request.on('error', () => resolve())
      this.#request = request
    })
  }

  stop(): void {
    this.#done = true
    this.#request?.destroy()
  }
}

describe('session streams that are cut', function () {
  this.timeout(600_000)
  const app = forSuite(() => startSessionApp({ actions: ['agents:*', 'sessions:*'] }))

  it('continue at any byte without loss or repeat', async () => {
    const words = ['alpha ', 'beta ', 'gamma ', 'delta ', 'epsilon']
    const { agentId } = await app.scripted([{ reply: { chunks: words, text: words.join(''), chunk_delay_ms: 4 } }])
    const one = async (seed: number) => {
      const below = random(seed)
      const session: Json = await app.session({ agent_id: agentId, auto_generate: true })
      const reader = new CutReader(
        `${app.url}/api/v1/sessions/${session.id}/stream?last_event_id=0`,
        app.key.token as string,
        below,
      )
      // The events of a session begin with its first stream.
      const opened = await fetch(`${app.url}/api/v1/sessions/${session.id}/stream`, {
        headers: { authorization: `Bearer ${app.key.token}` },
      })
      await opened.body?.cancel()
      const running = reader.run()
      const sent = await app.say(session, `hello ${seed}`)
      await eventually(() => reader.frames.some(({ event }) => event === 'turn_completed'), {
        within: 60_000,
        what: `the end of seed ${seed}`,
      })
      reader.stop()
      await running
      const durable = reader.frames.filter(({ id }) => id !== undefined)
      assert.deepEqual(
        durable.map(({ id, event }) => [id, event]),
        [
          ['1', 'message'],
          ['2', 'turn_started'],
          ['3', 'message'],
          ['4', 'turn_completed'],
        ],
        `seed ${seed}`,
      )
      assert.equal(durable[2].data.content, words.join(''), `seed ${seed}`)
      // A cut after the last text loses what the reply contains.
      const text = textOf(reader.frames, sent.generation_id)
      assert.ok(words.join('').startsWith(text), `seed ${seed}: ${text}`)
      return reader.cuts
    }
    let next = 0
    let cuts = 0
    const lane = async () => {
      while (next < SEEDS) {
        const more = await one(next++)
        cuts += more
      }
    }
    await Promise.all(Array.from({ length: CONCURRENT }, lane))
    assert.ok(cuts > SEEDS, `${cuts} cuts`)
  })
})
