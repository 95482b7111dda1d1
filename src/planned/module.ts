import { module } from '../core/api/module.ts'
import type { PlannedNames } from '../core/iam/catalogue.ts'

/**
 * Names of the API contract without a module yet. They are valid in policies, so that a policy written for the whole
 * contract is accepted. A module that is added takes over its names.
 */
export const namesToCome: PlannedNames = { actions: [], types: ['knowledge'], events: [] }

export default module('planned', { planned: namesToCome })
