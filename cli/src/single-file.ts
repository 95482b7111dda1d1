import { writeFileSync } from 'node:fs'
import { VERSION } from '../../client/src/generated/version.ts'
import { main as complete } from './complete.ts'
import { main } from './main.ts'

/** The program as one file, without commands that operate a deployment. */

const args = process.argv.slice(2)
if (args[0] === '--version' || args[0] === '-V') writeFileSync(1, `${VERSION}\n`)
else process.exit(args[0] === '__complete' ? complete(args.slice(1), {}) : await main(args, {}))
