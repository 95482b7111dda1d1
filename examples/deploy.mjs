// Deploys a template, or shows with --plan what a deploy would do, or deletes the formation with --delete:
// node examples/deploy.mjs <name> <file> [--plan | --delete] [Parameter=value ...]
import { readFileSync } from 'node:fs'
import { get, post, send } from './muster.mjs'

const [name, file, ...rest] = process.argv.slice(2)
if (!file) throw new Error('usage: node examples/deploy.mjs <name> <file> [--plan | --delete] [Parameter=value ...]')
const template = readFileSync(file, 'utf8')
const parameters = Object.fromEntries(
  rest.filter(arg => !arg.startsWith('--')).map(arg => [arg.split('=', 1)[0], arg.slice(arg.indexOf('=') + 1)]),
)
const [known] = (await get(`/formations?name=${encodeURIComponent(name)}`)).data

if (rest.includes('--plan')) {
  const { changes } = await post('/formations/plan', { template, parameters, formation_id: known?.id })
  for (const { action, logical_id, diff } of changes)
    console.log(`${action} ${logical_id}${diff ? ` ${Object.keys(diff.desired).join(', ')}` : ''}`)
} else if (rest.includes('--delete')) {
  await send('DELETE', `/formations/${known.id}`)
  console.log(`deleted ${known.id}`)
} else {
  const formation = known
    ? await (await send('PUT', `/formations/${known.id}`, { template, parameters })).json()
    : await post('/formations', { name, template, parameters })
  const operations = `/formations/${formation.id}/events?limit=1`
  const { total } = await get(operations)
  const [{ events }] = (await get(`${operations}&offset=${total - 1}`)).data
  for (const { action, logical_id, status } of events) console.log(`${action} ${logical_id} ${status}`)
  // A 2xx says that the deploy ran; whether it worked is the status.
  if (formation.status !== 'active') throw new Error(`${formation.error.code}: ${formation.error.message}`)
  for (const [output, value] of Object.entries(formation.outputs)) console.log(`${output}: ${JSON.stringify(value)}`)
}
