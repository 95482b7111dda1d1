import type { Queryable } from '../db/sql.ts'
import { extensionPoint } from '../declarations.ts'
import type { Caller } from '../iam/caller.ts'
import type { Kind, KindRow } from './kind.ts'
import type { Operation, TargetGrant } from './operation.ts'

/** A call about a row of another project than the one that acts. */
export type GrantRequest = {
  operation: Operation
  kind: Kind
  row: KindRow
  caller: Caller
  /** The project that the call names, else the one that the credential is bound to. */
  project_id: string
}

/**
 * How rows of some kinds reach other projects than their own. Rows of other kinds reach none.
 */
export type GrantSource = {
  kinds: readonly string[]
  /**
   * The grant that a call goes by. `refused`: the project may know of the row, but not do this with it
   * (API_KEY_PROJECT_SCOPE). `hidden`: as if the row did not exist. `none`: as if the acting project had not been named.
   */
  grant(db: Queryable, request: GrantRequest): Promise<TargetGrant | 'refused' | 'hidden' | 'none'>
  /** Those of the ids that a project may name although their rows are of others; they stay so until the transaction ends. */
  among(db: Queryable, kind: string, projectId: string, ids: readonly string[]): Promise<readonly string[]>
}

export const grantSources = extensionPoint<GrantSource>('rows that reach other projects')

export const grantSourceOf = (kind: string): GrantSource | undefined =>
  grantSources.all().find(({ kinds }) => kinds.includes(kind))
