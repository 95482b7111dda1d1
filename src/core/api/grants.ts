import { extensionPoint } from '../base/declarations.ts'
import type { Queryable } from '../db/sql.ts'
import type { Caller } from '../iam/caller.ts'
import type { Kind, KindRow } from './kind.ts'
import type { Operation, TargetGrant } from './operation.ts'

/** A call on a row of a project other than the acting project. */
export type GrantRequest = {
  operation: Operation
  kind: Kind
  row: KindRow
  caller: Caller
  /** The project named by the call, otherwise the project of the credential. */
  project_id: string
}

/** A mechanism that makes rows of some kinds available to other projects. */
export type GrantSource = {
  kinds: readonly string[]
  /**
   * Returns the grant that applies to a call. `refused`: the row is visible, but the call is not allowed
   * (API_KEY_PROJECT_SCOPE). `hidden`: the row is reported as not found. `none`: the acting project is ignored.
   */
  grant(db: Queryable, request: GrantRequest): Promise<TargetGrant | 'refused' | 'hidden' | 'none'>
  /** Returns the ids of other projects' rows that a project may reference, locked as such until the transaction ends. */
  among(db: Queryable, kind: string, projectId: string, ids: readonly string[]): Promise<readonly string[]>
}

export const grantSources = extensionPoint<GrantSource>({
  name: 'cross-project grant sources',
  folder: 'core/api',
  description: 'Says which rows of other projects a project may use',
})

export const grantSourceOf = (kind: string): GrantSource | undefined =>
  grantSources.all().find(({ kinds }) => kinds.includes(kind))
