import { agentConverters } from '#content/ingestion-rules/convert.ts'
import { activeWork } from '#control/quotas/spend-store.ts'
import { endUserContent } from '#control/retention/erasure.ts'
import { turnRates } from '#control/system/status.ts'
import { turnVersions } from '#control/usage/report-store.ts'
import { sql } from '#core/db/sql.ts'
import { module } from '#core/modules/module.ts'
import { deleteInBatches } from '#core/work/sweeps.ts'
import { leaseHolding } from '#core/work/takeover.ts'
import { waitingRows } from '#core/work/waiting-rows.ts'
import { convertByAgent } from './converter/convert.ts'
import { endUserTurns } from './erase/end-user-traces.ts'
import { contentSweepHandler, contentSweepSchedule } from './erase/expire-content.ts'
import { EXPIRE_TRACES, traceSweepHandler, traceSweepSchedule } from './erase/expire-traces.ts'
import { generationErrors } from './errors.ts'
import { generationHandlers, generationSchedules, preloadSdk, wakeTurnsOfLostHolders } from './handler.ts'
import { turnsTotal } from './loop/turn-attempt.ts'
import { generationKind, sealedTurnData } from './model.ts'
import { generationOperations, traceOperations } from './operations.ts'
import { activeTurnCount, countRecentTurns, oldestPending } from './store.ts'
import { deleteExpiredTickets, sealedTickets } from './streams/tickets.ts'
import { traceKind } from './traces/kind.ts'

export default module('generations', {
  tags: {
    Generations: 'Agent turns: start, stream, pause, cancel, retry and read.',
    Traces: 'Trees of generations with their settled steps.',
  },
  errors: generationErrors,
  kinds: [generationKind, traceKind],
  operations: [...generationOperations, ...traceOperations],
  handlers: [...generationHandlers, contentSweepHandler, traceSweepHandler],
  schedules: [...generationSchedules, contentSweepSchedule, traceSweepSchedule],
  policyActions: [
    {
      action: EXPIRE_TRACES,
      description: 'Written to the audit log when traces past the retention of the project are deleted',
      resource_type: 'project',
    },
  ],
  background: [preloadSdk],
  sweeps: [
    {
      name: 'stream tickets',
      when: '19 * * * *',
      run: ({ pool, clock }, stopping) =>
        deleteInBatches(limit => deleteExpiredTickets(pool, clock.now(), limit), stopping),
    },
  ],
  sealedColumns: [...sealedTurnData, sealedTickets],
  metrics: [turnsTotal],
  extensions: [
    agentConverters.with(convertByAgent),
    activeWork.with(activeTurnCount),
    turnVersions.with({
      join: sql.fragment`left join generations g on g.id = t.generation_id`,
      version: sql.fragment`g.agent_version`,
      exists: sql.fragment`exists (select from generations g where g.id = t.generation_id)`,
    }),
    turnRates.with(countRecentTurns),
    endUserContent.with(endUserTurns),
    leaseHolding.with(wakeTurnsOfLostHolders),
    waitingRows.with({ concern: 'generation', since: oldestPending }),
  ],
})
