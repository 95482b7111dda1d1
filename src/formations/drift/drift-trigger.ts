import type { TriggerTarget } from '#automation/triggers/targets.ts'
import { closeMatter, fileExceptionNow } from '#control/exceptions/file-exception.ts'
import { raise } from '#core/base/errors.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type FormationRow, formationKind } from '../records/model.ts'
import { type DriftSummary, driftSummary } from './drift.ts'

/** Drift detection by triggers. Files one exception per drifted formation and closes it when the formation is in sync. */

const ACTION = 'detect_drift'
const KIND = 'formation_drift'

export const formationTarget: TriggerTarget = {
  type: 'formation',
  kind: formationKind.name,
  action: 'formations:PlanFormation',
  configure(_target, { action }) {
    if (action !== ACTION)
      raise('TRIGGER_ACTION_NOT_ALLOWED', {
        message: `Action ${action} is not supported for formations; only ${ACTION} is`,
        meta: { field: 'action' },
      })
  },
  prepare: async () => null,
  call: (services, { target }) => driftSummary(services, target as FormationRow),
  async called(tx, { target }, output) {
    const formation = target as FormationRow
    const { drifted, resources } = output as DriftSummary
    if (!drifted) return closeDrift(tx, formation)
    const { id, project_id, name } = formation
    await fileExceptionNow(tx, {
      project_id,
      kind: KIND,
      title: `Formation ${name} has drifted: ${resources.length} resources differ from the last deploy`,
      detail: { formation_id: id, name, resources },
      dedup_key: id,
    })
    tx.emit(formationKind, 'drifted', formation, { extra: { resources } })
  },
}

/** Closes the drift exception of a formation. */
export const closeDrift = (tx: Tx, { id, project_id }: Pick<FormationRow, 'id' | 'project_id'>): Promise<void> =>
  closeMatter(tx, project_id, KIND, id)
