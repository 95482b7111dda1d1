import { loadModules, type Module, module } from '#core/modules/module.ts'
import { modules } from '#modules.ts'

/** Loads a module of a test after the modules of the product, until the function it returns is called. */
export function loadBeside(parts: Omit<Module, 'name'>): () => void {
  loadModules([...modules, module('of a test', parts)])
  return () => loadModules(modules)
}
