import { z } from 'zod'
import type { Services } from '../../core/operation.ts'
import { workQueue } from '../../core/queue.ts'
import { type Actor, actor, every, HandBack, type Tick } from '../../core/worker.ts'
import { abortTurn } from './abort.ts'
import { dropOldFrames, idleTurns } from './store.ts'
import { executeTurn, generationRun } from './turn.ts'

const generationSweep = workQueue('generation-sweep', {
  message: z.object({}),
  kind: 'generation',
  retry: { limit: 1 },
  leaseSeconds: 60,
})

/** Who runs turns outside a conversation, and who looks for those whose wake-up is missing. */
export function generationActors(services: Services): { actors: Actor[]; ticks: Tick[] } {
  const { config } = services
  // The first turn does not wait for the SDK to load.
  void import('../providers/attempt.ts')
  const run = actor(
    { ...generationRun, leaseSeconds: config.GENERATION_LEASE_SECONDS },
    {
      onExhausted: async ({ generation_id }, error) => {
        await services.write(tx =>
          abortTurn(tx, services, generation_id, {
            code: 'GENERATION_FAILED',
            message: error instanceof Error ? error.message : 'The turn could not be run',
          }),
        )
      },
    },
    async ({ generation_id }, { signal, stopping, log }) => {
      const outcome = await executeTurn(services, generation_id, { signal, stopping, log })
      if (outcome === 'handed_back') throw new HandBack()
    },
  )
  const sweep = actor(generationSweep, { concurrency: 1 }, () => sweepTurns(services))
  return {
    actors: [run, sweep],
    ticks: [every('generation-sweep', config.GENERATION_SWEEP_SECONDS, generationSweep, {})],
  }
}

/** The floor under wake-ups: turns that nobody has touched for a lease and a sweep are looked at again; old frames go. */
async function sweepTurns(services: Services): Promise<void> {
  const { pool, queues, config } = services
  const idle = await idleTurns(pool, Math.min(config.GENERATION_SWEEP_SECONDS, config.GENERATION_LEASE_SECONDS))
  if (idle.length > 0)
    await queues.send(
      idle.map(({ id, project_id }) => ({ queue: generationRun, data: { generation_id: id, project_id } })),
    )
  await dropOldFrames(pool)
}
