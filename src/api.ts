import { actorOperations } from './conversation/actors/operations.ts'
import type { Operation } from './core/operation.ts'
import { keyOperations } from './identity/keys/operations.ts'
import { projectOperations } from './identity/projects/operations.ts'

/** The table of contents: every module's operations, in reading order. An operation that is not here does not exist. */
export const operations: readonly Operation[] = [...projectOperations, ...keyOperations, ...actorOperations]
