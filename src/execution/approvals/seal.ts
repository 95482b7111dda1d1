import { createHash } from 'node:crypto'
import { canonicalJson } from '#core/base/canonical.ts'
import { parseExactJson } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import { sealJson } from '#core/secrets/json.ts'
import type { ApprovedCallOutcome, Frozen } from './model.ts'

type Owner = { id: string; project_id: string }

const callSeal = ({ id, project_id }: Owner) => ({ kind: 'approval', id, project_id })
const outcomeSeal = ({ id, project_id }: Owner) => ({ kind: 'approval_outcome', id, project_id })

export const sealFrozen = (services: Services, owner: Owner, frozen: Frozen): string =>
  sealJson(services, frozen, callSeal(owner))

/** Returns the sealed call of an approval, or null if it was erased or cannot be decrypted. */
export const openFrozen = (services: Services, owner: Owner & { sealed: string | null }): Frozen | null =>
  openSealed(services, owner.sealed, callSeal(owner))

export const sealOutcome = (services: Services, owner: Owner, outcome: ApprovedCallOutcome): string =>
  sealJson(services, outcome, outcomeSeal(owner))

export const openOutcome = (services: Services, owner: Owner, sealed: string | null): ApprovedCallOutcome | null =>
  openSealed(services, sealed, outcomeSeal(owner))

function openSealed<T>(services: Services, sealed: string | null, owner: ReturnType<typeof callSeal>): T | null {
  if (sealed === null) return null
  const found = services.secrets.open(sealed, owner)
  return found.ok ? parseExactJson(found.value) : null
}

/** Returns a digest that is equal for equal JSON, independent of key order. */
export const digestOf = (value: unknown): string => createHash('sha256').update(canonicalJson(value)).digest('hex')
