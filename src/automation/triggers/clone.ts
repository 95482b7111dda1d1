import { newId } from '#core/base/ids.ts'
import { principalRecord } from '#core/iam/caller.ts'
import type { Cloneable } from '#identity/projects/clone.ts'
import { refuseBoundedAgents } from './configure.ts'
import { newTriggerSecret, presentPrincipal, sealedForTrigger, triggerKind } from './model.ts'
import { listProjectTriggers } from './store.ts'

/**
 * Copies the triggers whose target was copied. A copy is inactive, has a new secret and runs as the caller, because the
 * creator of the original may have no permissions in the new project.
 */
export const triggerCloning: Cloneable = {
  name: 'triggers',
  after: ['orchestrations', 'evals', 'playbooks'],
  async copy(tx, from, to, ids, { services, caller }) {
    const originals = await listProjectTriggers(tx, from)
    if (originals.length > 0) refuseBoundedAgents(caller)
    const authority = principalRecord(caller)
    for (const original of originals) {
      const target_id = ids.get(original.target_id)
      if (target_id === undefined) continue
      const id = newId(triggerKind.prefix)
      const copy = await triggerKind.insert(tx, {
        ...original,
        id,
        project_id: to,
        target_id,
        active: false,
        next_fire_at: null,
        authority,
        created_by: presentPrincipal(authority),
        sealed_secret:
          original.sealed_secret === null ? null : services.secrets.seal(newTriggerSecret(), sealedForTrigger(id, to)),
        previous_sealed_secret: null,
        previous_secret_until: null,
        created_at: undefined,
        updated_at: undefined,
      })
      ids.set(original.id, id)
      tx.emit(triggerKind, 'created', copy)
    }
  },
}
