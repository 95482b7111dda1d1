import { declaredNames, loadModules } from '../core/api/module.ts'
import { modules } from '../modules.ts'
import { print, printJson } from './output.ts'

/** `muster modules`: what web, worker and command line of this release know, by name. Needs no database. */
export async function modulesCommand({ json }: { json?: boolean }): Promise<void> {
  loadModules(modules)
  const known = declaredNames()
  if (json) return printJson(known)
  for (const [what, names] of Object.entries(known)) {
    print(`${what}: ${names.length}`)
    for (const name of names) print(`  ${name}`)
  }
}
