import { declaredNames, loadModules } from '#core/modules/module.ts'
import { modules } from '#modules.ts'
import { print, printJson } from './output.ts'

/** `muster modules`: prints the names declared by the modules of this release. Requires no database. */
export async function modulesCommand({ json }: { json?: boolean }): Promise<void> {
  loadModules(modules)
  const declared = declaredNames()
  if (json) return printJson(declared)
  for (const [type, names] of Object.entries(declared)) {
    print(`${type}: ${names.length}`)
    for (const name of names) print(`  ${name}`)
  }
}
