import { newId } from '../../core/api/ids.ts'
import { principalRecord } from '../../core/iam/caller.ts'
import type { Cloneable } from '../../identity/projects/clone.ts'
import { refuseBoundedAgents } from './configure.ts'
import { presentPrincipal, sealedForTrigger, triggerKind } from './model.ts'
import { newTriggerSecret } from './secret.ts'
import { triggersOf } from './store.ts'

/**
 * A trigger is copied where its target is. The copy is switched off, has a secret of its own, and acts as whoever makes it:
 * the rights of who created the original are none of the new project's.
 */
export const triggerCloning: Cloneable = {
  name: 'triggers',
  after: ['orchestrations', 'evals', 'playbooks'],
  async copy(tx, from, to, ids, { services, caller }) {
    const originals = await triggersOf(tx, from)
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
