import { z } from 'zod'
import { type Caller, type CallerDefinition, type PrincipalRecord, principalRecord } from '../iam/caller.ts'
import type { Kind, KindRow } from './kind.ts'

/** Authors of definitions (tools, agents, graphs …). A kind has authors if it declares the hidden column `author`. */

export const Author = z.custom<PrincipalRecord>().nullable()

export type AuthoredRow = KindRow & { author: PrincipalRecord | null }

/** Columns that do not affect the behaviour of a definition. */
const COSMETIC: readonly string[] = ['name', 'description', 'tags', 'metadata']

/** Returns the written columns that change the behaviour of a definition. */
export const behaviourColumns = (changes: object): string[] =>
  Object.keys(changes).filter(name => !COSMETIC.includes(name))

/** Returns the author column of a write; empty if the behaviour of the definition is unchanged. */
export const authorColumn = (changes: object, caller: Caller): { author?: PrincipalRecord } =>
  behaviourColumns(changes).length > 0 ? { author: principalRecord(caller) } : {}

/** Returns the author column of a new row; empty for kinds without authors. */
export const authorOf = ({ authored }: Pick<Kind, 'authored'>, caller: Caller): { author?: PrincipalRecord } =>
  authored === 'author' ? { author: principalRecord(caller) } : {}

/** Returns the definition that limits the permissions of calls made by a row. */
export const definitionOf = ({ id, author }: Pick<AuthoredRow, 'id' | 'author'>): CallerDefinition => ({ id, author })
