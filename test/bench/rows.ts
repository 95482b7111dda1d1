/**
 * One measured number. `target` is the intended value; a miss is printed. It fails the run if the number is a count,
 * which does not depend on how busy the machine is.
 */
export type Row = { what: string; value: number; unit: string; target?: string; isCount?: boolean; note?: string }
