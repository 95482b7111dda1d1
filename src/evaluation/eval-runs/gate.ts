import { isIdOf } from '#core/api/kind.ts'
import type { PromotionGates } from '#execution/agents/release.ts'
import { evalKind } from '../evals/model.ts'
import { findPassedRun } from './store.ts'

/** Evals as promotion gates: a version must have passed a run of the current revision of the eval. */
export const evalGates: PromotionGates = {
  async exists(db, agent, evalId) {
    const row = isIdOf(evalKind, evalId) ? await evalKind.find(db, evalId) : null
    return row?.project_id === agent.project_id && row.agent_id === agent.id
  },
  async passedRun(db, agent, evalId, version) {
    return (await this.exists(db, agent, evalId)) ? findPassedRun(db, evalId, version) : null
  },
}
