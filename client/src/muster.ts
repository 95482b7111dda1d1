import { Client, type ClientOptions } from './client.ts'
import { type Modules, modules } from './generated/modules.ts'
import { bind } from './operation.ts'

// The methods follow from the operations.
export interface Muster extends Modules {}

/** All operations, by module: `muster.agents.create({ … })`. */
// biome-ignore lint/suspicious/noUnsafeDeclarationMerging: the constructor assigns every module
export class Muster extends Client {
  constructor(options: ClientOptions) {
    super(options)
    Object.assign(this, bind(modules, this))
  }
}
