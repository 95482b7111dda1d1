import { setTimeout as sleep } from 'node:timers/promises'
import { findServer } from './cluster.ts'
import type { Drill } from './drill.ts'
import { openPair, PAIR_PROGRAMS, type Pair, startStandby } from './pair.ts'

/** The primary of a synchronous pair is killed, the standby is promoted, and the old primary comes back as its standby. */
export const failover: Drill = {
  name: 'failover',
  summary:
    'the primary of a synchronous pair of servers is killed, the standby is promoted, and the old primary follows',
  seconds: 40,
  requires: () => void findServer(PAIR_PROGRAMS),
  openDatabase: openPair,
  async break({ database, seconds, load, note }) {
    const { primary, standby } = database as Pair
    await sleep((seconds * 1000) / 3)
    await primary.kill()
    note('the primary is killed')
    await standby.promote()
    note('the standby is promoted')
    await load.progress()
    note('work of every kind is acknowledged')
    primary.clear()
    await startStandby(primary, standby)
    note('the old primary is the synchronous standby')
  },
}
