import { module } from '../core/api/module.ts'
import { namesToCome } from './names.ts'

/**
 * Names of the contract whose modules are still to come: known, so that a policy written for all of it is not refused
 * whole, and clients can tell the codes apart. A module that arrives takes its names from here.
 */
export default module('planned', { planned: namesToCome })
