import { setTimeout as sleep } from 'node:timers/promises'
import type { Drill } from './drill.ts'

/** Pause between two rounds. */
const PAUSE_MS = 2000

/** Kills a web process and a worker by SIGKILL at a time, while they have work. */
export const kill: Drill = {
  name: 'kill',
  summary: 'kills a web process and a worker at a time by SIGKILL',
  seconds: 40,
  promises: ['available'],
  async break({ deployment, load, seconds, note }) {
    const endsAt = Date.now() + seconds * 1000
    while (Date.now() < endsAt) {
      note('kill a web process and a worker')
      await Promise.all([deployment.kill('web'), deployment.kill('worker')])
      await load.progress()
      await sleep(PAUSE_MS)
    }
  },
}
