// Deploys a template. --plan prints the changes of a deploy, --delete deletes the formation:
// node examples/deploy.mjs <name> <file> [--plan | --delete] [Parameter=value ...]
import { readFileSync } from 'node:fs'
import { get, post, send } from './muster.mjs'

const [name, file, ...rest] = process.argv.slice(2)
if (!file) throw new Error('usage: node examples/deploy.mjs <name> <file> [--plan | --delete] [Parameter=value ...]')
const template = readFileSync(file, 'utf8')
const parameters = Object.fromEntries(
  rest.filter(arg => !arg.startsWith('--')).map(arg => [arg.split('=', 1)[0], arg.slice(arg.indexOf('=') + 1)]),
)
const [existing] = (await get(`/formations?name=${encodeURIComponent(name)}`)).data

if (rest.includes('--plan')) {
  const { changes } = await post('/formations/plan', { template, parameters, formation_id: existing?.id })
  for (const { action, logical_id, diff } of changes)
    console.log(`${action} ${logical_id}${diff ? ` ${Object.keys(diff.desired).join(', ')}` : ''}`)
} else if (rest.includes('--delete')) {
  await send('DELETE', `/formations/${existing.id}`)
  console.log(`deleted ${existing.id}`)
} else {
  const formation = existing
    ? await (await send('PUT', `/formations/${existing.id}`, { template, parameters })).json()
    : await post('/formations', { name, template, parameters })
  const operations = `/formations/${formation.id}/events?limit=1`
  const { total } = await get(operations)
  const [{ events }] = (await get(`${operations}&offset=${total - 1}`)).data
  for (const { action, logical_id, status } of events) console.log(`${action} ${logical_id} ${status}`)
  // A 2xx response means that the deploy has ended. Its status says whether it succeeded.
  if (formation.status !== 'active') throw new Error(`${formation.error.code}: ${formation.error.message}`)
  for (const [output, value] of Object.entries(formation.outputs)) console.log(`${output}: ${JSON.stringify(value)}`)
}
