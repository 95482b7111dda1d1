import { loadConfig } from '#config.ts'
import { operations } from '#core/api/operation.ts'
import { release } from '#core/base/release.ts'
import type { Description } from '#core/docs/description.ts'
import { exportSite, relativeLinks } from '#core/docs/export.ts'
import { Site } from '#core/docs/site.ts'
import { loadModules } from '#core/modules/module.ts'
import { openApiDocument } from '#core/openapi/openapi.ts'
import { modules } from '#modules.ts'
import { print } from './output.ts'

/** `muster docs export`. */
export function exportDocsCommand(directory: string): void {
  const config = { ...loadConfig(), DOCS_ENABLED: true }
  loadModules(modules)
  const describe = () => openApiDocument(operations.all(), config, release) as Description
  const count = exportSite(new Site(config, operations.all(), describe, relativeLinks), directory)
  print(`${count} files written to ${directory}`)
}
