import type { PlannedNames } from '../core/iam/catalogue.ts'

/** Resource types to come. */
export const plannedNames: PlannedNames = { actions: [], types: ['knowledge'], events: [] }
