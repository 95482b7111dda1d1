import type { Drill } from './drill.ts'
import { hastenLongTurn, KINDS, LONG_TURN } from './kinds.ts'

/** Deploys at least: further ones follow until the load has lasted. */
const DEPLOYS = 10

/** Replaces all processes ten times while a turn of 100 steps runs. Work that outlives the grace period is requeued. */
export const rolling: Drill = {
  name: 'rolling',
  summary: 'ten deploys of web and workers within one turn of 100 steps',
  seconds: 60,
  // Starting processes takes most of two cores: a denser load queues up, and its end is waited for.
  pauseMs: 1000,
  promises: ['available', 'stops-cleanly'],
  processes: { web: 1, worker: 1 },
  env: { SHUTDOWN_GRACE_MS: '3000' },
  kinds: [...KINDS, LONG_TURN],
  async break({ deployment, double, load, prepared, api, seconds, note }) {
    const endsAt = Date.now() + seconds * 1000
    for (let deploy = 1; deploy <= DEPLOYS || Date.now() < endsAt; deploy++) {
      await Promise.all([deployment.replace('web'), deployment.replace('worker')])
      await load.progress()
      note(`deploy ${deploy}`)
    }
    const { data } = await api('GET', LONG_TURN.list(prepared))
    note(`the long turn is ${data[0].status} after the deploys`)
    await hastenLongTurn(double.url)
  },
}
