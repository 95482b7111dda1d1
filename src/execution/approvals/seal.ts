import { createHash } from 'node:crypto'
import { canonicalJson } from '../../core/api/canonical.ts'
import type { Services } from '../../core/process/services.ts'
import { sealJson } from '../../core/secrets/json.ts'
import type { ApprovedCallOutcome, Frozen } from './model.ts'

type Owner = { id: string; project_id: string }

const frozenFor = ({ id, project_id }: Owner) => ({ kind: 'approval', id, project_id })
const outcomeFor = ({ id, project_id }: Owner) => ({ kind: 'approval_outcome', id, project_id })

export const sealFrozen = (services: Services, owner: Owner, frozen: Frozen): string =>
  sealJson(services, frozen, frozenFor(owner))

/** Null when it is gone, or cannot be decrypted. */
export const openFrozen = (services: Services, owner: Owner & { sealed: string | null }): Frozen | null =>
  opened(services, owner.sealed, frozenFor(owner))

export const sealOutcome = (services: Services, owner: Owner, outcome: ApprovedCallOutcome): string =>
  sealJson(services, outcome, outcomeFor(owner))

export const openOutcome = (services: Services, owner: Owner, sealed: string | null): ApprovedCallOutcome | null =>
  opened(services, sealed, outcomeFor(owner))

function opened<T>(services: Services, sealed: string | null, owner: ReturnType<typeof frozenFor>): T | null {
  if (sealed === null) return null
  const found = services.secrets.open(sealed, owner)
  return found.ok ? JSON.parse(found.value) : null
}

/** The digest of a value: equal for equal JSON, whatever the order of its keys. */
export const digestOf = (value: unknown): string => createHash('sha256').update(canonicalJson(value)).digest('hex')
