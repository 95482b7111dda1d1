import type { PlannedNames } from '../core/iam/catalogue.ts'

/** Resource types to come. */
export const namesToCome: PlannedNames = { actions: [], types: ['knowledge'], events: [] }
