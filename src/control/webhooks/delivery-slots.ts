import { Gauge } from 'prom-client'

/** What holds slots of deliveries in this process. */
const holders = new Set<() => { total: number; held: number; working: number }>()

export const deliverySlots = new Gauge({
  name: 'muster_delivery_slots',
  help: 'Slots of this process for deliveries by state: total, held, and working, those through which something is being sent',
  labelNames: ['state'],
  registers: [],
  collect() {
    this.reset()
    for (const slots of holders) for (const [state, count] of Object.entries(slots())) this.inc({ state }, count)
  },
})

/** Counts the slots of a loop until what it returns is called. */
export function countSlots(slots: () => { total: number; held: number; working: number }): () => void {
  holders.add(slots)
  return () => void holders.delete(slots)
}
