import { listExtensionPoints } from '#core/base/declarations.ts'
import { declaredNames, loadModules } from '#core/modules/module.ts'
import { modules } from '#modules.ts'
import { print, printJson } from './output.ts'

/**
 * `muster modules`: prints the names declared by the modules of this release, and its extension points. Requires no
 * database.
 */
export async function modulesCommand({ json }: { json?: boolean }): Promise<void> {
  loadModules(modules)
  const declared = declaredNames()
  const points = listExtensionPoints()
  if (json) return printJson({ ...declared, extension_points: points })
  for (const [type, names] of Object.entries(declared)) {
    print(`${type}: ${names.length}`)
    for (const name of names) print(`  ${name}`)
  }
  print(`extension_points: ${points.length}`)
  for (const { name, contributors } of points) print(`  ${name}: ${contributors.join(', ')}`)
}
