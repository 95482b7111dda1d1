import { z } from 'zod'
import { type Caller, type CallerDefinition, type PrincipalRecord, principalRecord } from '../iam/caller.ts'
import type { Kind, KindRow } from './kind.ts'

/**
 * Authors of definitions: of tools, agents, graphs and other rows that act when they are used. A kind that declares the
 * hidden column `author` has them.
 */

export const Author = z.custom<PrincipalRecord>().nullable()

export type Authored = KindRow & { author: PrincipalRecord | null }

/** Columns that say nothing of what a definition does. */
const COSMETIC: readonly string[] = ['name', 'description', 'tags', 'metadata']

/** The columns written that change what a definition does. */
export const effectiveAuthor = (changes: object): string[] =>
  Object.keys(changes).filter(name => !COSMETIC.includes(name))

/** The author that a write leaves, as a column to write; nothing where what the definition does stays the same. */
export const authorColumn = (changes: object, caller: Caller): { author?: PrincipalRecord } =>
  effectiveAuthor(changes).length > 0 ? { author: principalRecord(caller) } : {}

/** The author of a new row, as a column to write; nothing for kinds without one. */
export const authorOf = ({ authored }: Pick<Kind, 'authored'>, caller: Caller): { author?: PrincipalRecord } =>
  authored === 'author' ? { author: principalRecord(caller) } : {}

/** A row as what narrows the rights of what it does. */
export const definitionOf = ({ id, author }: Pick<Authored, 'id' | 'author'>): CallerDefinition => ({ id, author })
