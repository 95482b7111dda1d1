import { Gauge } from 'prom-client'

/** Sources of the slot counts, one per delivery loop. */
const sources = new Set<() => { total: number; held: number; working: number }>()

export const deliverySlots = new Gauge({
  name: 'muster_delivery_slots',
  help: 'Delivery slots of this process by state: total, held, and working (in use by an attempt)',
  labelNames: ['state'],
  registers: [],
  collect() {
    this.reset()
    for (const slots of sources) for (const [state, count] of Object.entries(slots())) this.inc({ state }, count)
  },
})

/** Includes the slots of a loop in the gauge. Returns a function that excludes them again. */
export function countSlots(slots: () => { total: number; held: number; working: number }): () => void {
  sources.add(slots)
  return () => void sources.delete(slots)
}
