import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { countRoundTrips } from '../bench/http.ts'
import { startApp } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { createStore, DIMENSIONS, state } from './support.ts'

/** Facts that prepare statements on all connections and fill caches, and facts that are counted. */
const ROUNDS = { first: 30, counted: 15 }

describe('round trips', function () {
  this.timeout(60_000)
  // The local model is free: with another, usage is written at any time after the embedding.
  const local = { EMBEDDING_PROVIDER: 'local', EMBEDDING_DIMENSIONS: String(DIMENSIONS) }
  const app = forSuite(() => startApp({ env: { ...local, DATABASE_POOL_MAX: '4' }, inProcess: true }))
  const project = forSuite(() => app.projectWith(['memories:*', 'actors:*']))

  /**
   * Asserts the round trips of a fact: the fewest of all rounds, because caches expire and connections prepare statements in some.
   */
  const assertRoundTrips = async (count: number, submit: (content: string) => Promise<unknown>) => {
    const trips: number[] = []
    const counter = countRoundTrips()
    try {
      for (let round = 0; round < ROUNDS.first + ROUNDS.counted; round++) {
        const before = counter.value
        await submit(randomBytes(16).toString('hex'))
        trips.push(counter.value - before)
      }
    } finally {
      counter.stop()
    }
    assert.equal(Math.min(...trips.slice(ROUNDS.first)), count, trips.join())
  }

  it('of a new fact are five: the store, codes and vectors, the comparison under the lock, the write', async () => {
    const store = await createStore(project.key)
    await assertRoundTrips(5, async content => {
      assert.equal((await state(project.key, store, content)).action, 'created')
    })
  })

  it('of a known text are three, because it is not embedded', async () => {
    const store = await createStore(project.key)
    await state(project.key, store, 'known')
    await assertRoundTrips(3, async () => {
      assert.equal((await state(project.key, store, 'known')).action, 'skipped')
    })
  })

  it('of a fact of an end user are one more, for the end user', async () => {
    const store = await createStore(project.key)
    const { id: actor_id } = await createdBy(project.key, '/actors', { name: 'Ada' })
    await assertRoundTrips(6, async content => {
      assert.equal((await state(project.key, store, content, { actor_id })).action, 'created')
    })
  })
})
