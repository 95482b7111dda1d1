import assert from 'node:assert/strict'
import { Muster } from '../../client/dist/index.js'
import { startSessionApp } from '../conversation/session-support.ts'
import { random } from '../support/random.ts'
import { forSuite } from '../support/suite.ts'
import { startCutter, withoutWaiting } from './support.ts'

const SEEDS = 200
const CONCURRENT = 8
const CUT_BYTES = 4000

describe('a streamed turn over connections that are cut', function () {
  this.timeout(180_000)
  const app = forSuite(startSessionApp)

  it(`yields the events of an uncut one, whatever the bytes of the cuts (${SEEDS} seeds)`, async () => {
    const text = 'Orders can be returned within thirty days, Grüße. '.repeat(3)
    const { agentId, requests } = await app.scripted([{ reply: { text, chunk_words: 2, chunk_delay_ms: 1 } }])
    const ask = { agent_id: agentId, prompt: 'How long?' }
    let cuts = 0
    const turn = async (seed: number): Promise<void> => {
      const draw = random(seed)
      const cutter = await startCutter(new URL(app.url), () => 1 + draw(CUT_BYTES))
      try {
        // Without the waits between them, many tries pass while a slow machine carries out the first one.
        const muster = new Muster({ baseUrl: cutter.url, token: app.key.token as string, maxRetries: 1000 })
        const stream = muster.agents.generateStream(ask)
        const events = []
        for await (const event of stream) events.push(event)
        const { id } = await stream.result()
        const whole = []
        const direct = new Muster({ baseUrl: app.url, token: app.key.token as string })
        for await (const event of direct.generations.stream({ generation_id: id })) whole.push(event)
        const named = (all: { event: string; id?: string; data: unknown }[]) =>
          all.map(each => [each.event, each.id, each.data])
        assert.deepEqual(named(events), named(whole), `seed ${seed}`)
        const pieces = events.flatMap(each =>
          each.event === 'delta' ? (each.data.choices[0].delta.content ?? '') : '',
        )
        assert.equal(pieces.join(''), text, `seed ${seed}`)
        cuts += cutter.cuts()
      } finally {
        cutter.close()
      }
    }
    let next = 0
    const worker = async () => {
      while (next < SEEDS) await turn(next++)
    }
    await withoutWaiting(() => Promise.all(Array.from({ length: CONCURRENT }, worker)))
    assert.ok(cuts > SEEDS / 2, `${cuts} cuts`)
    // No turn was started twice.
    assert.equal((await requests()).length, SEEDS)
  })
})
