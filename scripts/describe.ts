import fs from 'node:fs'
import path from 'node:path'
import { operations } from '#core/api/operation.ts'
import { loadModules } from '#core/modules/module.ts'
import { openApiDocument } from '#core/openapi/openapi.ts'
import { modules } from '#modules.ts'

/** Writes `client/openapi.json` from the operations, without a database or a running service. */

const root = path.resolve(import.meta.dirname, '..')
const { version } = JSON.parse(fs.readFileSync(path.join(root, 'package.json'), 'utf8'))
loadModules(modules)
const document = openApiDocument(operations.all(), { DOCS_BASE_URL: '' }, version)
fs.writeFileSync(path.join(root, 'client/openapi.json'), JSON.stringify(document))
