import { setTimeout as sleep } from 'node:timers/promises'
import { newId } from '#core/base/ids.ts'
import { silentLog } from '#core/base/log.ts'
import { openNotifier } from '#core/db/notifier.ts'
import { openNotifications } from '#core/db/notify.ts'
import { openPool } from '#core/db/pool.ts'
import { sql } from '#core/db/sql.ts'
import { createWriter, type Tx } from '#core/writes/writer.ts'
import { startApp } from '../support/app.ts'
import { percentile } from './measure.ts'
import type { Row } from './rows.ts'

/**
 * Transactions a second of clients that create rows: while nothing is notified, while each of them wakes listeners, and while each
 * notifies in its commit. Without a disk to wait for they are alike. Usage: node test/bench/run.ts commits
 */
const CLIENTS = 24
const LISTENERS = 4
const CHANNEL = 'muster_bench'
const SECONDS = 2
const ROUNDS = 3

export async function run(): Promise<Row[]> {
  const app = await startApp()
  const { databaseUrl } = app
  const project = (await app.project()).id as string
  const log = silentLog()
  const pool = await openPool({ databaseUrl, connections: CLIENTS })
  const notifier = openNotifier({ databaseUrl, log })
  const listeners = await Promise.all(Array.from({ length: LISTENERS }, () => openNotifications({ databaseUrl, log })))
  let heard = 0
  await Promise.all(listeners.map(listener => listener.listen(CHANNEL, () => heard++).ready))
  const { write } = createWriter({
    pool,
    queues: { insert: async () => [], sendCtes: async () => [] },
    notifier,
    eventMaxBytes: 0,
    onError: () => {},
  })
  /** Commits a second of all clients together. */
  const rate = async (tell: (tx: Tx, id: string) => void): Promise<number> => {
    let commits = 0
    const started = performance.now()
    const client = async () => {
      while (performance.now() - started < SECONDS * 1000) {
        const id = newId('actor')
        await write(async tx => {
          await tx.query(sql.unsafe`insert into actors (id, project_id, name) values (${id}, ${project}, 'made')`)
          tell(tx, id)
        })
        commits += 1
      }
    }
    await Promise.all(Array.from({ length: CLIENTS }, client))
    return (commits * 1000) / (performance.now() - started)
  }
  const kinds = {
    silent: () => {},
    woken: (tx: Tx, id: string) => tx.notify(CHANNEL, id),
    inCommit: (tx: Tx, id: string) => tx.invalidate(CHANNEL, id),
  }
  const rates = { silent: [] as number[], woken: [] as number[], inCommit: [] as number[] }
  try {
    for (const tell of Object.values(kinds)) await rate(tell)
    for (let round = 0; round < ROUNDS; round++)
      for (const [name, tell] of Object.entries(kinds)) {
        rates[name as keyof typeof kinds].push(await rate(tell))
        await sleep(200)
      }
    const of = (name: keyof typeof kinds) => percentile(rates[name], 0.5)
    return [
      {
        what: `commits a second of ${CLIENTS} creating clients, with listeners, of the same without notifications`,
        value: Number((of('woken') / of('silent')).toFixed(2)),
        unit: 'x',
        target: '>= 0.8',
        note: `${Math.round(of('woken'))}/s against ${Math.round(of('silent'))}/s; ${Math.round(of('inCommit'))}/s that notify in their commits; ${heard} heard`,
      },
    ]
  } finally {
    await notifier.close()
    await Promise.all(listeners.map(listener => listener.close()))
    await pool.end()
    await app.close()
  }
}
